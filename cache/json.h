// A JSON value: composed and printed, or read from a text of somebody else. nlohmann's own value
// cannot be used in a process whose memory may be refused: its destructor allocates, and a
// destructor that throws ends the process. This one frees itself without allocating. json.cc reads
// and prints it with nlohmann's parser and printer, which its users do not compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace octile {

struct JsonMistake {
  enum class Kind { kSyntax, kTooDeep, kTwice, kNumber };
  Kind kind = Kind::kSyntax;
  std::size_t byte = 0;  // of kSyntax: how many bytes had been read; more than there are: the end
  std::string key = {};  // of kTwice
};

class Json {
 public:
  struct Member;

  // Values turn into JSON by themselves, so that an object is written as a list of its members.
  // NOLINTBEGIN(google-explicit-constructor)
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
  Json(std::initializer_list<Member> members);  // an object
  template <typename Value>
  Json(const std::vector<Value>& values) : Json(array()) {
    for (const Value& value : values) push_back(value);
  }
  // NOLINTEND(google-explicit-constructor)

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(Json other) noexcept;
  ~Json();

  static Json array(std::initializer_list<Json> values = {});
  static Json object();

  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_array() const { return kind_ == Kind::kArray; }
  bool is_object() const { return kind_ == Kind::kObject; }
  // Returns null if the value is not a string.
  const std::string* string() const { return kind_ == Kind::kString ? value_.string : nullptr; }
  std::optional<bool> boolean() const;
  // Returns a number without fraction and exponent that 64 bits hold with a sign.
  std::optional<std::int64_t> integer() const;
  std::optional<double> number() const;

  // Returns the number of an array's values or an object's members, 0 for others.
  std::size_t size() const;
  bool empty() const { return size() == 0; }
  // The values of an array; nothing if it is not one.
  const Json* begin() const;
  const Json* end() const;
  // The members of an object, in their order. The value must be one.
  const std::vector<Member>& items() const { return *value_.object; }
  // Returns the object's member of this name, the last if there are several, or null.
  const Json* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Return the member of an object and the value of an array, or throw std::out_of_range.
  const Json& at(std::string_view name) const;
  Json& at(std::string_view name);
  const Json& at(std::size_t index) const;
  Json& at(std::size_t index);

  // Appends to an array. Returns this value.
  Json& push_back(Json value);
  // Appends a member to an object that has none of this name. Returns this value.
  Json& add(std::string_view name, Json value);
  // Gives a member another value, or adds it. Returns this value.
  Json& set(std::string_view name, Json value);
  // Sorts the members of this and all objects within by name.
  void sort_members();

  // Return the text, the second with escapes for other characters than ASCII. If `indent` is 0, it
  // is one line without spaces, else every value has a line of its own. Bytes that are not UTF-8
  // become U+FFFD, and a number that is not finite becomes null.
  std::string dump(std::size_t indent = 0) const;
  std::string dump_ascii(std::size_t indent = 0) const;

  // Numbers of equal value are equal. Objects are equal if their members have the same order, too.
  friend bool operator==(const Json& a, const Json& b);

 private:
  class Parser;
  class Printer;
  friend tl::expected<Json, std::string> parse_object(std::string_view text,
                                                      std::string_view where);
  friend tl::expected<Json, JsonMistake> parse_json(std::string_view text, std::size_t most_depth);
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

  Kind kind_ = Kind::kNull;
  Value value_{};
};

struct Json::Member {
  std::string name;
  Json value;
  friend bool operator==(const Member&, const Member&) = default;
};

// No file of the cache nests its values deeper. The limit bounds time and memory of a parse: a
// value costs a few bytes of text and a hundred bytes of memory for each level.
inline constexpr int kMaxJsonDepth = 8;

// Returns the JSON object of a text from outside. The error is "`where`: not a JSON
// object".
tl::expected<Json, std::string> parse_object(std::string_view text, std::string_view where);

// Returns the value of a text. `Infinity`, `-Infinity` and `NaN`, which Python's json writes, are
// numbers. Errors: no JSON, more than `most_depth` arrays and objects within each other, a key
// twice in one object, a number beyond the range of a double.
tl::expected<Json, JsonMistake> parse_json(std::string_view text, std::size_t most_depth);

}  // namespace octile
