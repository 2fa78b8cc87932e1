// Compiles the embedded templates by nvcc, which reads files and not strings.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "templates/embedded.h"

namespace octile::tests {

// A folder of the embedded templates as files.
class TemplateFolder {
 public:
  TemplateFolder()
      : root_(std::filesystem::temp_directory_path() / fmt::format("octile_lint_{}", getpid())) {
    for (const TemplateFile& file : embedded_templates()) {
      const std::filesystem::path path = root_ / file.path;
      std::filesystem::create_directories(path.parent_path());
      std::ofstream(path) << file.text;
    }
  }
  ~TemplateFolder() { std::filesystem::remove_all(root_); }
  TemplateFolder(const TemplateFolder&) = delete;
  TemplateFolder& operator=(const TemplateFolder&) = delete;
  std::string path() const { return root_.string(); }

 private:
  std::filesystem::path root_;
};

// Returns whether a command succeeded, and its standard output and error.
inline std::pair<bool, std::string> run_command(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {false, "popen failed"};
  std::string log;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) log.push_back(static_cast<char>(c));
  return {pclose(pipe) == 0, log};
}

inline const std::string kNvcc = "PATH=$PATH:/usr/local/cuda/bin nvcc";

inline bool has_nvcc() { return run_command(kNvcc + " --version").first; }

// Fails with the compiler's log unless templates/`family`/`name`.cu compiles without warnings.
inline void expect_compiles(const TemplateFolder& folder, const std::string& family,
                            const std::string& name) {
  const std::string command = fmt::format(
      "{3} -gencode arch=compute_90a,code=sm_90a --cubin -Werror all-warnings -I{0} "
      "-o {0}/{2}.cubin {0}/{1}/{2}.cu",
      folder.path(), family, name, kNvcc);
  const auto [ok, log] = run_command(command);
  EXPECT_TRUE(ok) << command << "\n" << log;
}

}  // namespace octile::tests
