#include "tests/cli/command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "runtime/base/environment.h"

namespace octile::tests {
namespace {

bool is_octiles(std::string_view assignment) {
  for (const EnvironmentVariable& v : environment_variables()) {
    // NVRTC is found through the variables of the loader, of the toolkit and of Python.
    if (!v.name.starts_with("OCTILE_") && !v.name.starts_with("XDG_") && v.name != "HOME") continue;
    if (assignment.starts_with(std::string(v.name) + "=")) return true;
  }
  return false;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Shell::Shell() {
  std::string pattern = (fs::temp_directory_path() / "octile-cli-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  folder_ = pattern;
  program_ = OCTILE_COMMAND;
  variables_ = {{"OCTILE_CACHE_DIR", (folder_ / "cache").string()},
                {"OCTILE_LIBCUDA", "/nonexistent/libcuda.so.1"}};
}

Shell::~Shell() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Shell::set(const std::string& variable, const std::string& value) {
  variables_[variable] = value;
}

void Shell::redirect(int fd, const std::string& path) { redirected_[fd] = path; }

Outcome Shell::run(const std::vector<std::string>& arguments) const {
  std::vector<std::string> argv{program_};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<std::string> envp;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view assignment = *variable;
    const bool replaced =
        variables_.contains(std::string(assignment.substr(0, assignment.find('='))));
    if (!replaced && !is_octiles(assignment)) envp.emplace_back(assignment);
  }
  for (const auto& [name, value] : variables_) envp.push_back(name + "=" + value);

  const fs::path out = folder_ / "stdout";
  const fs::path err = folder_ / "stderr";
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), kFlags, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), kFlags, 0600);
  for (const auto& [fd, path] : redirected_) {
    if (path.empty()) {
      posix_spawn_file_actions_addclose(&actions, fd);
    } else {
      const int flags = fd == STDIN_FILENO ? O_RDONLY : O_WRONLY;
      posix_spawn_file_actions_addopen(&actions, fd, path.c_str(), flags, 0);
    }
  }
  pid_t child = 0;
  const int spawned = ::posix_spawn(&child, program_.c_str(), &actions, nullptr,
                                    pointers(argv).data(), pointers(envp).data());
  posix_spawn_file_actions_destroy(&actions);
  if (spawned != 0) throw std::runtime_error("posix_spawn failed");
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out),
          read_file(err)};
}

nlohmann::json Outcome::json() const { return nlohmann::json::parse(out); }

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(text).str();
}

std::string layer_record() {
  return R"({"record": 1, "tool": "octile bench", "what": "layer model=llama-3.2-1b )"
         R"(layer=self_attn.qkv_proj mode=decode tokens=64 n=3072 k=2048 recipe=blockwise", )"
         R"("card": {"name": "NVIDIA H100 80GB HBM3"}, "date": "2026-11-26", )"
         R"("protocol": {"timing": "graph", "interleaved": true}, "unit": "us", "median": 10, )"
         R"("peers": [{"name": "bf16", "median": 10.1, )"
         R"("ratio": {"median": 1.01, "interval": [1.0, 1.015]}}], "ok": true, "details": )"
         R"({"groups": 0, "rows": 64, "calls": 2, "quantize_us": 2, "gain_eager": 0.81875}})"
         "\n";
}

bool has_compiler(const Shell& shell) {
  return shell.run({"doctor", "--no-self-test", "--json"})
      .json()
      .at("nvrtc")
      .at("found")
      .get<bool>();
}

std::set<std::string> matches(const std::string& text, const char* pattern) {
  const std::regex expression(pattern, std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> all;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end; it != end; ++it) {
    all.insert((*it)[1]);
  }
  return all;
}

std::string read_manual(const Shell& shell, const std::string& subcommand) {
  std::vector<std::string> arguments{"help", "--man"};
  if (!subcommand.empty()) arguments.push_back(subcommand);
  return std::regex_replace(shell.run(arguments).out, std::regex(R"(\\-)"), "-");
}

}  // namespace octile::tests
