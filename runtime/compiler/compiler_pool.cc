#include "runtime/compiler/compiler_pool.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/base/environment.h"
#include "runtime/base/thread.h"
#include "runtime/compiler/messages.h"
#include "runtime/process/find_program.h"

namespace octile {
namespace {

constexpr std::string_view kInProcess = "in-process";

// Returns what OCTILE_COMPILER says, else the program beside the library.
tl::expected<std::string, std::string> chosen_program() {
  if (auto chosen = environment_path("OCTILE_COMPILER")) return std::move(*chosen);
  return find_program(kCompilerName);
}

// Returns the path of OCTILE_LIBNVRTC if it is one, because the program has another folder.
std::string named_library() {
  const std::string named = environment_path("OCTILE_LIBNVRTC").value_or("");
  return named.starts_with('/') ? named : std::string();
}

// NVRTC in this process, whose thread may have a small stack.
Result<CompileOutput> compile_here(const Nvrtc& nvrtc, const std::string& name,
                                   const std::string& source,
                                   std::span<const std::string> options) {
  Result<CompileOutput> output;
  run_on_stack(kStackBytesOfNvrtc, [&] { output = nvrtc.compile(name, source, options); });
  return output;
}

}  // namespace

CompilerPool::CompilerPool(Warn warn, CompileLimits limits)
    : warn_(std::move(warn)), limits_(limits) {}
CompilerPool::~CompilerPool() = default;

std::optional<std::string> CompilerPool::program() {
  auto chosen = chosen_program();
  if (!chosen || *chosen == kInProcess) return std::nullopt;
  return std::move(*chosen);
}

Result<NvrtcIdentity> CompilerPool::open() {
  {
    const std::scoped_lock lock(mutex_);
    if (identity_) return *identity_;
  }
  auto taken = start();
  if (!taken) return tl::unexpected<Error>(taken.error());
  if (taken->in_process != nullptr) return taken->in_process->identity();
  NvrtcIdentity identity = taken->process->identity();
  give_back(std::move(taken->process));
  return identity;
}

void CompilerPool::set_build(std::string digest) {
  const std::scoped_lock lock(mutex_);
  build_ = std::move(digest);
}

Result<CompileOutput> CompilerPool::compile(const std::string& name, const std::string& source,
                                            std::span<const std::string> options) {
  auto taken = take();
  if (!taken) return tl::unexpected<Error>(taken.error());
  if (taken->in_process != nullptr) return compile_here(*taken->in_process, name, source, options);
  auto answer = taken->process->compile(name, source, options);
  if ((answer.silent && taken->was_idle) || answer.stalled) {
    // It may have ended because it had nothing to do, just before the request came. One that
    // stalled may have been stopped.
    taken = start();
    if (!taken) return tl::unexpected<Error>(taken.error());
    if (taken->in_process != nullptr)
      return compile_here(*taken->in_process, name, source, options);
    answer = taken->process->compile(name, source, options);
  }
  if (answer.stalled) {
    const std::string why = answer.compiled.error().message;
    {
      const std::scoped_lock lock(mutex_);
      useless_ = why;  // waiting for it again would take as long again
    }
    taken = open_here(why);
    if (!taken) return tl::unexpected<Error>(taken.error());
    return compile_here(*taken->in_process, name, source, options);
  }
  if (answer.usable) give_back(std::move(taken->process));
  if (!answer.compiled) return tl::unexpected<Error>(answer.compiled.error());
  return read_output(std::move(*answer.compiled));
}

// Returns the process that was used last, which is in the processor's caches, or a new one.
Result<CompilerPool::Taken> CompilerPool::take() {
  for (;;) {
    Process process;
    {
      const std::scoped_lock lock(mutex_);
      if (idle_.empty()) break;
      process = std::move(idle_.back());
      idle_.pop_back();
    }
    if (process->is_ready()) return Taken{std::move(process), nullptr, true};
  }
  return start();
}

Result<CompilerPool::Taken> CompilerPool::start() {
  const auto program = chosen_program();
  if (!program) return open_here(program.error());
  if (*program == kInProcess) return open_here({});
  std::string nvrtc;
  std::string useless;
  {
    const std::scoped_lock lock(mutex_);
    nvrtc = nvrtc_;
    useless = useless_;
  }
  if (!useless.empty()) return open_here(useless);
  if (nvrtc.empty()) nvrtc = named_library();
  auto started = CompilerProgram::start(*program, nvrtc, limits_);
  if (!started && started.error().nvrtc_missing && nvrtc.empty()) {
    // This process may find what the program does not: a library that it has loaded already.
    const auto found = Nvrtc::open();
    if (!found) return tl::unexpected<Error>(found.error());
    nvrtc = (*found)->identity().path;
    started = CompilerProgram::start(*program, nvrtc, limits_);
  }
  if (!started) {
    const CompilerProgram::Failure& failure = started.error();
    if (failure.silent) {  // waiting for it again would take as long again
      const std::scoped_lock lock(mutex_);
      useless_ = failure.error.message;
    }
    return open_here(failure.error.message);
  }
  if (Status same = agree((*started)->identity()); !same)
    return tl::unexpected<Error>(same.error());
  const std::scoped_lock lock(mutex_);
  nvrtc_ = std::move(nvrtc);
  return Taken{std::move(*started), nullptr, false};
}

// why: what prevents a process; empty: this process was asked for.
Result<CompilerPool::Taken> CompilerPool::open_here(const std::string& why) {
  auto nvrtc = Nvrtc::open();
  if (!nvrtc) return tl::unexpected<Error>(nvrtc.error());
  if (Status same = agree((*nvrtc)->identity()); !same) return tl::unexpected<Error>(same.error());
  bool first = false;
  {
    const std::scoped_lock lock(mutex_);
    first = !std::exchange(warned_, true);
  }
  if (first && !why.empty())
    warn_(
        fmt::format("kernels are compiled in this process, where NVRTC handles SIGINT and SIGTERM "
                    "while it compiles: {}; OCTILE_COMPILER=in-process asks for this",
                    why));
  return Taken{nullptr, std::move(*nvrtc), false};
}

// All kernels of a handle name one toolchain, so all its processes must have the same NVRTC.
Status CompilerPool::agree(const NvrtcIdentity& identity) {
  const std::scoped_lock lock(mutex_);
  if (!identity_) identity_ = identity;
  if (*identity_ == identity) return {};
  if (identity_->path == identity.path) {
    // A further link to a file changes its status, and a reinstallation its inode.
    const auto build = identity.build_digest();
    if (build && *build == build_) {
      identity_ = identity;
      return {};
    }
    return fail(ErrorCode::kNoCompiler,
                fmt::format("\"{}\" was replaced since this library handle began with it; make a "
                            "new handle to use the new one",
                            identity.path));
  }
  return fail(ErrorCode::kNoCompiler,
              fmt::format("a new process finds {} at \"{}\", where this library handle began with "
                          "{} at \"{}\"; make a new handle to use it",
                          identity.version_text(), identity.path, identity_->version_text(),
                          identity_->path));
}

void CompilerPool::give_back(Process process) {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(process));
}

}  // namespace octile
