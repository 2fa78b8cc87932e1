// Reads the fields of a JSON object and remembers the first one that is missing or has the wrong
// type. Fields that nobody reads are ignored, because a newer library may have written them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/json.h"

namespace octile::cache {

class FieldReader {
 public:
  // `where` starts the error sentence: "metadata", "tuning record". The object must outlive the
  // reader.
  FieldReader(const Json& object, std::string_view where) : object_(object), where_(where) {}

  void read(const char* name, std::string& out);
  void read(const char* name, int& out);
  void read(const char* name, std::int64_t& out);
  void read(const char* name, double& out);
  void read(const char* name, std::vector<int>& out);

  // Returns null if the object has no such field.
  const Json* find(const char* name) const { return object_.find(name); }
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
