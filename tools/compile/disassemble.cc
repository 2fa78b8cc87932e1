#include "tools/compile/disassemble.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cache/file_ops.h"
#include "cache/rights.h"
#include "runtime/base/environment.h"
#include "runtime/compiler/nvrtc_search.h"
#include "runtime/process/own_folder.h"

namespace octile::tools {
namespace {

using Arguments = std::vector<std::string>;

// The child reads the cubin from a file without a name at this descriptor, so that nothing is left
// on disk.
constexpr int kChildFd = 3;
constexpr const char* kChildPath = "/proc/self/fd/3";

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void reset() {
    ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

tl::unexpected<Error> system_failure(const char* what, int code) {
  return fail(ErrorCode::kInternal,
              fmt::format("{} failed: {}", what, std::generic_category().message(code)));
}

Status write_all(int fd, std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_failure("writing the cubin to memory", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

// Starts the program with the cubin at kChildFd and stdout at `out`. Returns 0 or an errno.
int start(const Arguments& arguments, int cubin, int out, pid_t& child) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, cubin, kChildFd);
  std::array<char*, 1> nothing{nullptr};
  char** const environment = cache::has_more_rights_than_caller() ? nothing.data() : environ;
  const int code = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environment);
  posix_spawn_file_actions_destroy(&actions);
  return code;
}

// Returns what the program writes, or nothing if there is no such program.
Result<std::optional<std::string>> output_of(const Arguments& arguments, int cubin) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_failure("pipe", errno);
  const Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  pid_t child = 0;
  const int code = start(arguments, cubin, out.get(), child);
  out.reset();
  if (code == ENOENT || code == ENOTDIR || code == EACCES) return std::nullopt;
  if (code != 0) return system_failure(arguments[0].c_str(), code);
  std::string text = read_all(in.get());
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  return fail(ErrorCode::kInternal,
              fmt::format("{} failed with status {}; what it said is above", arguments[0],
                          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)));
}

struct Folder {
  std::string path;  // with a slash at its end; empty: PATH is searched
  bool is_named = true;
};

// Returns where a disassembler is looked for, in order.
std::vector<Folder> folders() {
  std::vector<Folder> all;
  if (const auto home = environment_value("CUDA_HOME")) all.push_back({*home + "/bin/"});
  if (!cache::has_more_rights_than_caller()) all.push_back({});
  for (const NvrtcPlace& place : nvrtc_places()) {
    if (!place.folder.empty()) all.push_back({place.folder + "/../bin/", place.is_named});
  }
  return all;
}

// Returns the program to start, or nothing if it is not there or not to be trusted.
std::optional<std::string> program_in(const Folder& folder, const std::string& name) {
  if (folder.is_named) return folder.path + name;
  cache::FileOps ops;
  auto checked = check_code(ops, folder.path + name);
  if (!checked) return std::nullopt;
  return std::move(*checked);
}

}  // namespace

Result<std::string> disassemble(std::span<const std::uint8_t> cubin) {
  const Descriptor memory(::memfd_create("octile-cubin", MFD_CLOEXEC));
  if (memory.get() < 0) return system_failure("memfd_create", errno);
  if (Status ok = write_all(memory.get(), cubin); !ok) return tl::unexpected<Error>(ok.error());
  for (const Folder& folder : folders()) {
    for (Arguments command :
         {Arguments{"nvdisasm", kChildPath}, Arguments{"cuobjdump", "--dump-sass", kChildPath}}) {
      const auto program = program_in(folder, command[0]);
      if (!program) continue;
      command[0] = *program;
      auto output = output_of(command, memory.get());
      if (!output) return tl::unexpected<Error>(output.error());
      std::optional<std::string> listing = std::move(*output);
      if (listing) return *std::move(listing);
    }
  }
  return fail(
      ErrorCode::kNoCompiler,
      "neither nvdisasm nor cuobjdump is in CUDA_HOME/bin, in PATH or beside the folders "
      "where NVRTC is looked for; install the Python package nvidia-cuda-nvdisasm, or a CUDA "
      "toolkit (packages cuda-nvdisasm, cuda-cuobjdump), or set CUDA_HOME to one");
}

}  // namespace octile::tools
