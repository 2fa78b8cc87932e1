// Reads the fields of a JSON object and remembers the first one that is missing or has the wrong
// type. Fields that nobody reads are ignored, because a newer library may have written them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace octile::cache {

// No file of the cache nests its values deeper. The limit bounds time and memory of a parse: a
// value costs a few bytes of text and a hundred bytes of memory for each level.
inline constexpr int kMaxJsonDepth = 8;

// Returns the JSON object of a text from outside. The error says what the text is not: "`where`:
// not a JSON object".
tl::expected<nlohmann::ordered_json, std::string> parse_object(std::string_view text,
                                                               std::string_view where);

class FieldReader {
 public:
  using Json = nlohmann::ordered_json;

  // `where` starts the error sentence: "metadata", "tuning record". The object must outlive the
  // reader.
  FieldReader(const Json& object, std::string_view where) : object_(object), where_(where) {}

  void read(const char* name, std::string& out);
  void read(const char* name, int& out);
  void read(const char* name, std::int64_t& out);
  void read(const char* name, double& out);
  void read(const char* name, std::vector<int>& out);

  // Returns null if the object has no such field.
  const Json* find(const char* name) const;
  // Reads an optional field. If it is missing, `out` keeps its value.
  template <typename T>
  void read_optional(const char* name, T& out) {
    if (find(name) != nullptr) read(name, out);
  }

  // Sets the error to "`where`: field '`name`' is not `wanted`", unless an error is already set.
  void complain(const char* name, std::string_view wanted);
  const std::string& error() const { return error_; }  // empty if there is no error

 private:
  const Json& object_;
  std::string where_;
  std::string error_;
};

}  // namespace octile::cache
