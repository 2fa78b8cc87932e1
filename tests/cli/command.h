// Runs the octile command and keeps its output.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace octile::tests {

namespace fs = std::filesystem;
using nlohmann::json;

struct Outcome {
  int exit_code = -1;  // 128 + the signal's number if a signal ended it
  std::string out;
  std::string err;
  nlohmann::json json() const;
};

// Has its own folder for cache and output, and removes it at the end. The command gets none of
// Octile's variables from the test's environment. Its driver does not exist, so that a machine with
// a GPU answers like one without.
class Shell {
 public:
  Shell();
  ~Shell();
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  void set(const std::string& variable, const std::string& value);
  // Gives the command another file as descriptor 0, 1 or 2, such as /dev/full; "" closes it.
  // Outcome then has no text of it.
  void redirect(int fd, const std::string& path);
  // Runs this program instead of the command of the build.
  void use(const fs::path& program) { program_ = program; }
  Outcome run(const std::vector<std::string>& arguments) const;

  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
  std::map<std::string, std::string> variables_;
  std::map<int, std::string> redirected_;
  std::string program_;
};

// Returns the bytes of a file.
std::string read_file(const fs::path& path);

// Returns a line: `octile bench verdict`'s record of llama-3.2-1b's qkv projection on an H100, with
// a gain of 1.00 to 1.015 as a graph and 0.82 call by call, before it was judged.
std::string layer_record();

// Returns true if doctor finds NVRTC.
bool has_compiler(const Shell& shell);

// Returns the first group of every match of `pattern`, in which ^ is the start of a line.
std::set<std::string> matches(const std::string& text, const char* pattern);

// Returns the manual page of a subcommand, or of the command itself if it is empty, with plain
// hyphens.
std::string read_manual(const Shell& shell, const std::string& subcommand);

}  // namespace octile::tests
