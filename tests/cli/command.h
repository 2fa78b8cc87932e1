// Runs the octile command and keeps what it wrote.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace octile::tests {

struct Outcome {
  int exit_code = -1;  // 128 + the signal's number where one ended it
  std::string out;
  std::string err;
  nlohmann::json json() const;
};

// A place of its own for cache and output, removed with it. No variable of the table is taken over
// from the test's environment; the driver is one that does not exist, so that a machine with a GPU
// answers as one without.
class Shell {
 public:
  Shell();
  ~Shell();
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  void set(const std::string& variable, const std::string& value);
  Outcome run(const std::vector<std::string>& arguments) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::map<std::string, std::string> variables_;
};

// Whether NVRTC is there, by doctor.
bool has_compiler(const Shell& shell);

}  // namespace octile::tests
