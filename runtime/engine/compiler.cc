#include "runtime/engine/compiler.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cache/file_ops.h"
#include "cache/root.h"
#include "runtime/environment.h"

namespace octile {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "octile toolchain memo 1";
constexpr std::string_view kMemoName = "toolchain.memo";
constexpr std::string_view kDigestMemoName =
    "nvrtc-digest.memo";  // NvrtcIdentity::build_digest's own
// The variables that decide which library Nvrtc::open finds.
constexpr std::array<std::string_view, 3> kSearchVariables{"OCTILE_LIBNVRTC", "CUDA_HOME",
                                                           "LD_LIBRARY_PATH"};

// Returns one line per file, or nullopt if a file cannot be examined. It does not depend on the
// host's clock.
std::optional<std::string> fingerprint(const fs::path& file) {
  struct stat s{};
  if (::stat(file.c_str(), &s) != 0) return std::nullopt;
  return fmt::format("file {} size {} mtime {}.{:09} inode {}\n", file.string(), s.st_size,
                     s.st_mtim.tv_sec, s.st_mtim.tv_nsec, s.st_ino);
}

// Returns the compiler's files: the library and the builtins beside it.
std::optional<std::string> fingerprints(const fs::path& nvrtc) {
  std::vector<fs::path> files{nvrtc};
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(nvrtc.parent_path(), error))
    if (entry.path().filename().string().starts_with("libnvrtc-builtins")) files.push_back(entry);
  if (error) return std::nullopt;
  std::sort(files.begin() + 1, files.end());
  std::string text;
  for (const fs::path& file : files) {
    const auto line = fingerprint(file);
    if (!line) return std::nullopt;
    text += *line;
  }
  return text;
}

std::string search_text() {
  std::string text;
  for (const std::string_view name : kSearchVariables)
    text += fmt::format("variable {}={}\n", name, environment_value(name).value_or(""));
  return text;
}

// Everything that the toolchain's name was derived from. It is compared as a whole.
std::optional<std::string> provenance(const std::string& nvrtc) {
  const auto files = fingerprints(nvrtc);
  if (!files) return std::nullopt;
  return search_text() + *files;
}

std::string memo_text(const cache::Toolchain& toolchain, const std::string& nvrtc,
                      std::string_view derived_from) {
  const std::string body = fmt::format("{}\nnvrtc {}\ncompiler {}\nbuild {}\n{}", kMagic, nvrtc,
                                       toolchain.compiler, toolchain.build, derived_from);
  return body + "digest " + cache::digest_hex(body) + "\n";
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

// Returns the rest of the next line if it begins with "<tag> ", else an empty text.
std::string next_field(std::istream& in, std::string_view tag) {
  std::string line;
  if (!std::getline(in, line) || !line.starts_with(tag) || line.size() <= tag.size()) return {};
  return line.substr(tag.size() + 1);
}

}  // namespace

Compiler::Compiler(std::string memo_folder, CompilerPool::Warn warn)
    : memo_folder_(std::move(memo_folder)), pool_(std::move(warn)) {}

Result<Compiler::Opened> Compiler::open() {
  const std::scoped_lock lock(mutex_);
  if (opened_) return *opened_;
  auto nvrtc = pool_.open();
  if (!nvrtc) return tl::unexpected<Error>(nvrtc.error());
  const std::string memo =
      memo_folder_.empty() ? "" : fmt::format("{}/{}", memo_folder_, kDigestMemoName);
  auto build = nvrtc->build_digest(memo);
  if (!build) return tl::unexpected<Error>(build.error());
  opened_ = Opened{*nvrtc, {nvrtc->version_text(), std::move(*build)}};
  remember(*opened_);
  return *opened_;
}

Result<cache::Toolchain> Compiler::toolchain() {
  {
    const std::scoped_lock lock(mutex_);
    if (opened_) return opened_->toolchain;
    if (!recalled_) recalled_ = recall();
    if (recalled_) return *recalled_;
  }
  auto opened = open();
  if (!opened) return tl::unexpected<Error>(opened.error());
  return opened->toolchain;
}

// Writes the memo to another name and renames it, so that a reader sees all of it or none. A
// failure is not reported, because it costs the next process only a few milliseconds.
void Compiler::remember(const Opened& opened) {
  if (memo_folder_.empty() || recall() == opened.toolchain) return;
  const auto derived_from = provenance(opened.nvrtc.path);
  if (!derived_from) return;
  std::error_code ignored;
  // The folder gets the cache's permissions. Root refuses a folder that others may write.
  if (!cache::Root(memo_folder_, true, cache::or_system(nullptr))
           .open(cache::Root::Missing::kCreate))
    return;
  const std::string path = fmt::format("{}/{}", memo_folder_, kMemoName);
  const std::string temporary = fmt::format("{}.{}", path, ::getpid());
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << memo_text(opened.toolchain, opened.nvrtc.path, *derived_from);
    if (!out.flush()) {
      fs::remove(temporary, ignored);
      return;
    }
  }
  fs::rename(temporary, path, ignored);
  if (ignored) fs::remove(temporary, ignored);
}

std::optional<cache::Toolchain> Compiler::recall() const {
  if (memo_folder_.empty()) return std::nullopt;
  const std::string text = read_file(fmt::format("{}/{}", memo_folder_, kMemoName));
  std::istringstream in(text);
  std::string magic;
  if (!std::getline(in, magic) || magic != kMagic) return std::nullopt;
  const std::string nvrtc = next_field(in, "nvrtc");
  cache::Toolchain toolchain{next_field(in, "compiler"), next_field(in, "build")};
  if (nvrtc.empty() || toolchain.compiler.empty() || toolchain.build.empty()) return std::nullopt;
  // The memo is composed again from the present files, which compares all of it in one step.
  const auto derived_from = provenance(nvrtc);
  if (!derived_from || memo_text(toolchain, nvrtc, *derived_from) != text) return std::nullopt;
  return toolchain;
}

}  // namespace octile
