#include "runtime/engine/compiler.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/file_ops.h"
#include "runtime/base/environment.h"
#include "runtime/compiler/file_digest.h"
#include "runtime/compiler/nvrtc_search.h"

namespace octile {
namespace {

constexpr std::string_view kMagic = "octile toolchain memo 3\n";
constexpr std::string_view kMemoName = "toolchain.memo";
// The variables that, with the libraries of nvrtc_places(), decide which library Nvrtc::open opens.
constexpr std::array<std::string_view, 2> kSearchVariables{"OCTILE_LIBNVRTC", "LD_LIBRARY_PATH"};
constexpr std::string_view kBuiltins = "libnvrtc-builtins";
// CUDA installs one to three names of its builtins. Beyond this many there is no memo.
constexpr std::size_t kMostFiles = 64;

// Returns the paths of the compiler's files: the library and the builtins beside it.
std::optional<std::vector<std::string>> files_of(cache::FileOps& ops, const std::string& nvrtc) {
  const std::string folder = nvrtc.substr(0, nvrtc.rfind('/') + 1);
  const int fd = cache::retry_interrupted(
      [&] { return ops.open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) return std::nullopt;
  const cache::OpenFile opened(ops, fd);
  std::vector<std::string> names;
  if (ops.list(opened.fd(), names) < 0) return std::nullopt;
  std::erase_if(names, [](const std::string& name) { return !name.starts_with(kBuiltins); });
  if (names.size() > kMostFiles) return std::nullopt;
  std::ranges::sort(names);
  std::vector<std::string> files{nvrtc};
  for (const std::string& name : names) files.push_back(folder + name);
  return files;
}

// Returns one line a file, or nothing if a file cannot be examined. It does not depend on the
// host's clock.
std::optional<std::string> files_text(cache::FileOps& ops, const std::string& nvrtc) {
  const auto files = files_of(ops, nvrtc);
  if (!files) return std::nullopt;
  std::string text;
  for (const std::string& file : *files) {
    const auto line = status_text(ops, file);
    if (!line) return std::nullopt;
    text += *line;
  }
  return text;
}

std::string search_text() {
  std::string text;
  for (const std::string_view name : kSearchVariables)
    text += fmt::format("variable {}={}\n", name, environment_value(name).value_or(""));
  return text + nvrtc_places_text(nvrtc_places());
}

// Returns the rest of the first line if it begins with "<tag> ", and removes the line.
std::optional<std::string> take_field(std::string_view& text, std::string_view tag) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  if (!line.starts_with(tag) || line.size() <= tag.size() || line[tag.size()] != ' ')
    return std::nullopt;
  return std::string(line.substr(tag.size() + 1));
}

}  // namespace

struct Compiler::Memo {
  std::string nvrtc;  // path, with links resolved
  cache::Toolchain toolchain;
  std::string derived_from;  // files_text(), then search_text()

  std::string text() const {
    const std::string body = fmt::format("{}nvrtc {}\ncompiler {}\nbuild {}\n{}", kMagic, nvrtc,
                                         toolchain.compiler, toolchain.build, derived_from);
    return body + "digest " + cache::digest_hex(body) + "\n";
  }
};

Compiler::Compiler(const std::string& memo_root, std::shared_ptr<cache::FileOps> file_ops,
                   CompilerPool::Warn warn)
    : ops_(cache::or_system(std::move(file_ops))),
      memo_(memo_root.empty() ? std::nullopt
                              : std::optional<cache::MemoFile>(std::in_place, memo_root,
                                                               std::string(kMemoName), ops_)),
      warn_(warn),
      pool_(std::move(warn)) {}

void Compiler::warn_of_refused_places() {
  if (std::exchange(warned_, true) || environment_value("OCTILE_LIBNVRTC")) return;
  for (const NvrtcPlace& place : nvrtc_places())
    if (!place.refused.empty()) warn_(place.refused);
}

Result<Compiler::Opened> Compiler::open() {
  const std::scoped_lock lock(mutex_);
  if (opened_) return *opened_;
  auto nvrtc = pool_.open();
  warn_of_refused_places();
  if (!nvrtc) return tl::unexpected<Error>(nvrtc.error());
  cache::Toolchain toolchain{nvrtc->version_text(), {}};
  const auto files = files_text(*ops_, nvrtc->path);
  const auto memo = read_memo();
  // The files decide the build, not the search that led to them.
  const bool known = memo && files && memo->nvrtc == nvrtc->path &&
                     memo->toolchain.compiler == toolchain.compiler &&
                     memo->derived_from.starts_with(*files + "variable ");
  if (known) {
    toolchain.build = memo->toolchain.build;
  } else {
    auto build = nvrtc->build_digest();
    if (!build) return tl::unexpected<Error>(build.error());
    toolchain.build = std::move(*build);
  }
  pool_.set_build(toolchain.build);
  opened_ = Opened{*nvrtc, std::move(toolchain)};
  if (files) remember(*opened_, *files);
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

// `files`: the result of files_text() before the files were read. If they changed since, the digest
// may be that of either, and is not remembered. A failure is not reported, because it costs the
// next process only a few milliseconds, and the store reports a root that cannot be used.
void Compiler::remember(const Opened& opened, const std::string& files) const {
  if (!memo_ || files_text(*ops_, opened.nvrtc.path) != files) return;
  const Memo memo{opened.nvrtc.path, opened.toolchain, files + search_text()};
  const auto present = memo_->read();
  if (present && *present == memo.text()) return;
  (void)memo_->replace(memo.text());
}

// Returns the memo if the root and its file pass the checks of FORMAT.md and its digest is right.
std::optional<Compiler::Memo> Compiler::read_memo() const {
  if (!memo_) return std::nullopt;
  const auto read = memo_->read();
  if (!read || !read->starts_with(kMagic)) return std::nullopt;
  std::string_view text = std::string_view(*read).substr(kMagic.size());
  const auto nvrtc = take_field(text, "nvrtc");
  const auto compiler = take_field(text, "compiler");
  const auto build = take_field(text, "build");
  if (!nvrtc || !compiler || !build) return std::nullopt;
  Memo memo{*nvrtc, {*compiler, *build}, std::string(text.substr(0, text.rfind("digest ")))};
  // The memo is composed again, which compares all of it in one step.
  if (memo.text() != *read) return std::nullopt;
  return memo;
}

std::optional<cache::Toolchain> Compiler::recall() const {
  const auto memo = read_memo();
  if (!memo) return std::nullopt;
  const auto files = files_text(*ops_, memo->nvrtc);
  if (!files || memo->derived_from != *files + search_text()) return std::nullopt;
  return memo->toolchain;
}

}  // namespace octile
