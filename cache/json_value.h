// A JSON value that was read from a text of somebody else. nlohmann's own value cannot be used in a
// process whose memory may be refused: its destructor allocates, and a destructor that throws ends
// the process. This one is filled by nlohmann's event parser and frees itself without allocating.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <variant>
#include <vector>

namespace octile::cache {

// No file of the cache nests its values deeper. The limit bounds time and memory of a parse: a
// value costs a few bytes of text and a hundred bytes of memory for each level.
inline constexpr int kMaxJsonDepth = 8;

class JsonValue {
 public:
  using Array = std::vector<JsonValue>;
  struct Object {  // in the order of the text
    std::vector<std::string> names;
    Array values;  // as many
  };

  JsonValue() = default;  // null
  template <typename T>
  explicit JsonValue(T value) : value_(std::move(value)) {}

  // Each returns null if the value has another type.
  const std::string* string() const { return is(kString) ? &std::get<kString>(value_) : nullptr; }
  const Array* array() const { return is(kArray) ? &std::get<kArray>(value_) : nullptr; }
  const Object* object() const { return is(kObject) ? &std::get<kObject>(value_) : nullptr; }
  Array* array() { return is(kArray) ? &std::get<kArray>(value_) : nullptr; }
  Object* object() { return is(kObject) ? &std::get<kObject>(value_) : nullptr; }
  // Returns a number without fraction and exponent that 64 bits hold with a sign.
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;

  // Returns the object's member of this name, the last if there are several, or null.
  const JsonValue* find(std::string_view name) const;

 private:
  // The alternatives of value_, in their order.
  enum Kind : std::size_t {
    kNull,
    kBoolean,
    kInteger,
    kUnsigned,
    kNumber,
    kString,
    kArray,
    kObject
  };
  bool is(Kind kind) const { return value_.index() == kind; }

  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, Array,
               Object>
      value_ = nullptr;
};

// Returns the JSON object of a text from outside. The error names the expected type: "`where`:
// not a JSON object".
tl::expected<JsonValue, std::string> parse_object(std::string_view text, std::string_view where);

}  // namespace octile::cache
