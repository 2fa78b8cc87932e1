// Reads tests/cells/refusals.txt and makes the changes that its rows name.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "generator/core/error.h"
#include "octile/octile.h"
#include "tests/support/cell_table.h"

namespace octile::test {

// A C parameter or a field of a struct that rows name.
struct Field {
  enum class Kind { kSigned, kUnsigned, kFloat, kPointer };
  template <typename T>
  Field(std::string field_name, T* field)
      : name(std::move(field_name)), at(field), size(sizeof(T)) {
    if constexpr (std::is_pointer_v<T>) {
      kind = Kind::kPointer;
    } else if constexpr (std::is_floating_point_v<T>) {
      kind = Kind::kFloat;
    } else if constexpr (std::is_enum_v<T>) {
      kind = Kind::kSigned;
    } else {
      kind = std::is_signed_v<T> ? Kind::kSigned : Kind::kUnsigned;
    }
  }

  std::string name;
  void* at;
  std::size_t size;
  Kind kind = Kind::kSigned;
};
using Fields = std::vector<Field>;

// One change of a row: `name=value`, or `name+1` and `name-1`, which are of bytes if the field is a
// pointer. A value is a number, null, a text in quotes, an enumerator or another field.
struct Change {
  tests::Cell name;
  char op = '=';
  std::string value;
};

// The texts of changes, to which fields point.
using Texts = std::deque<std::string>;

// Makes a change. Errors name the place of the change and what is allowed there.
Status apply(const Change& change, const Fields& fields, Texts& texts);

// `name | call | change`: what calls of other functions work on.
struct Base {
  std::string call;
  std::vector<Change> changes;
};

// `call | base | change | status | parts`. Parts are separated by " / "; one that begins with "= "
// is the whole sentence.
struct Refusal {
  tests::Cell call;
  std::string base;
  std::vector<Change> changes;
  octile_status status = OCTILE_OK;
  std::vector<std::string> parts;
  std::string text;  // the row, for messages
};

struct RefusalTable {
  std::map<std::string, Base> bases;
  std::vector<Refusal> rows;
};

// Errors name the line and the column of the mistake.
Result<RefusalTable> parse_refusals(std::string_view text);

}  // namespace octile::test
