// A JSON value: composed and printed, or read from a text of somebody else. nlohmann's own value
// cannot be used in a process whose memory may be refused: its destructor allocates, and a
// destructor that throws ends the process. This one frees itself without allocating. json.cc reads
// and prints it with nlohmann's parser and printer, which its users do not compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace octile {

class Json {
 public:
  struct Member;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  template <std::same_as<bool> Bool>  // no pointer is one
  Json(Bool value) : kind_(Kind::kBoolean) {
    value_.boolean = value;
  }
  template <std::signed_integral Int>
  Json(Int value) : kind_(Kind::kInteger) {
    value_.integer = value;
  }
  template <std::unsigned_integral Int>
    requires(!std::same_as<Int, bool>)
  Json(Int value) : kind_(Kind::kUnsigned) {
    value_.natural = value;
  }
  Json(double value) : kind_(Kind::kNumber) { value_.number = value; }
  Json(std::string value);
  Json(std::string_view value);
  Json(const char* value);

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  static Json array();
  static Json object();

  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  // Returns null if the value is not a string.
  const std::string* string() const { return kind_ == Kind::kString ? value_.string : nullptr; }
  // Returns a number without fraction and exponent that 64 bits hold with a sign.
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;

  // The values of an array; nothing if it is not one.
  const Json* begin() const;
  const Json* end() const;
  // The members of an object, in their order. The value must be one.
  const std::vector<Member>& items() const { return *value_.object; }
  // Returns the object's member of this name, the last if there are several, or null.
  const Json* find(std::string_view name) const;

  // Appends to an array. Returns this value.
  Json& push_back(Json value);
  // Appends a member to an object that has none of this name. Returns this value.
  Json& add(std::string_view name, Json value);

  // Return the text on one line, without spaces, the second with escapes for other characters than
  // ASCII. Bytes that are not UTF-8 become U+FFFD, and a number that is not finite becomes null.
  std::string dump() const;
  std::string dump_ascii() const;

 private:
  class Parser;
  friend tl::expected<Json, std::string> parse_object(std::string_view text,
                                                      std::string_view where);
  enum class Kind : std::uint8_t {
    kNull,
    kBoolean,
    kInteger,
    kUnsigned,
    kNumber,
    kString,
    kArray,
    kObject
  };
  union Value {
    bool boolean;
    std::int64_t integer;
    std::uint64_t natural;
    double number;
    // Owned.
    std::string* string;
    std::vector<Json>* array;
    std::vector<Member>* object;
  };

  void print(std::string& to, bool ascii) const;

  Kind kind_ = Kind::kNull;
  Value value_{};
};

struct Json::Member {
  std::string name;
  Json value;
};

// No file of the cache nests its values deeper. The limit bounds time and memory of a parse: a
// value costs a few bytes of text and a hundred bytes of memory for each level.
inline constexpr int kMaxJsonDepth = 8;

// Returns the JSON object of a text from outside. The error is "`where`: not a JSON
// object".
tl::expected<Json, std::string> parse_object(std::string_view text, std::string_view where);

}  // namespace octile
