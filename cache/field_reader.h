// Reads the fields of a JSON object one after another and remembers the first that is missing or of
// another type. Fields it is not asked for are passed over: they come from a newer library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace octile::cache {

class FieldReader {
 public:
  using Json = nlohmann::ordered_json;

  // `where` opens the error: "metadata", "tuning record". The object outlives the reader.
  FieldReader(const Json& object, std::string_view where) : object_(object), where_(where) {}

  void read(const char* name, std::string& out);
  void read(const char* name, int& out);
  void read(const char* name, std::int64_t& out);
  void read(const char* name, double& out);
  void read(const char* name, std::vector<int>& out);

  // Null where the object has no such field.
  const Json* find(const char* name) const;
  // A field that may be left out: `out` keeps its value then.
  template <typename T>
  void read_optional(const char* name, T& out) {
    if (find(name) != nullptr) read(name, out);
  }

  // "`where`: field '`name`' is not `wanted`", unless an earlier complaint stands.
  void complain(const char* name, std::string_view wanted);
  const std::string& error() const { return error_; }  // empty: none so far

 private:
  const Json& object_;
  std::string where_;
  std::string error_;
};

}  // namespace octile::cache
