// The program octile-compiler: where it is, and one running process of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cache/file_ops.h"
#include "generator/core/error.h"
#include "runtime/compiler/message.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/compiler/start_program.h"

namespace octile {

// Limits of one compile. A GEMM takes 0.15 s and 100 MB. The bounds are far above that, so that
// only a compile that would not end, or an overloaded machine, meets them.
struct CompileLimits {
  std::chrono::milliseconds time = std::chrono::minutes(10);
  std::int64_t memory_bytes = std::int64_t{8} << 30;  // limit of the process's data; 0: none
  // A process that had nothing to do answers within this before it gets something: it answers in a
  // tenth of a millisecond, unless it is stopped.
  std::chrono::milliseconds time_to_answer = std::chrono::seconds(5);
  // A process that compiles says every second that it does, independently of NVRTC.
  std::chrono::milliseconds time_of_silence = std::chrono::seconds(20);
  // Opening NVRTC on a cold disk takes a quarter of a second; this is for a machine that swaps.
  std::chrono::milliseconds time_to_start = std::chrono::minutes(1);
};

// Returns the path of octile-compiler, links resolved: in the folder of Octile's own file, else
// where an installation has it relative to the library. check_code() has to allow it. In a process
// with more rights than its caller these places may be the caller's choice, by a hard link to the
// host's program. So there trusted_program() has to allow the one that is found. Errors:
// kNoCompiler, with the places that were looked at, or why the one that is there is not started.
Result<std::string> find_compiler_program();

// Returns the file that `program` names, links resolved, for a process with more rights than its
// caller. Errors: kNoCompiler if a user other than root, and the process's own user where the
// caller is another, may write the file or a folder above it, or if the caller has the same user
// and so could change the program's memory.
Result<std::string> trusted_program(cache::FileOps& ops, const std::string& program);

// A running octile-compiler, whose NVRTC is open. It ends when this object does, when this process
// ends, however that happens, and when it has had nothing to do for a minute.
class CompilerProgram {
 public:
  // nvrtc: the library to open; empty: the program searches as Nvrtc::open() does. Errors:
  // kNoCompiler if the program cannot be started, or is of another version of Octile;
  // `nvrtc_missing` then tells the case in which it started and found no NVRTC.
  struct Failure {
    Error error;
    bool nvrtc_missing = false;
    bool silent = false;  // it ran and said nothing in its time
  };
  static tl::expected<std::unique_ptr<CompilerProgram>, Failure> start(const std::string& program,
                                                                       const std::string& nvrtc,
                                                                       const CompileLimits& limits);

  const NvrtcIdentity& identity() const { return identity_; }

  // Returns false if the process is gone, or does not answer within its time. May be out of date at
  // once.
  bool is_ready();

  // Compiles one program. `error` is that of Nvrtc::compile_to_cubin, or kCompileFailed if NVRTC
  // ended or did not end. After a failure with `usable` false, the process is not to be used again.
  struct Answer {
    Result<CubinAndLog> compiled;
    bool usable = true;
    bool silent = false;   // the process was gone without a word, as one that had nothing to do
    bool stalled = false;  // it ran and did not say that it works
  };
  Answer compile(const std::string& name, const std::string& source,
                 std::span<const std::string> options);

 private:
  CompilerProgram(StartedProgram started, const CompileLimits& limits);

  const ProcessBetween between_;  // destroyed after the channel, whose end ends the process
  Channel channel_;
  const CompileLimits limits_;
  NvrtcIdentity identity_;
};

}  // namespace octile
