// One running process of the program octile-compiler.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "generator/core/error.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/process/message.h"
#include "runtime/process/start_program.h"

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

  const ProgramProcess process_;  // destroyed after the channel, whose end ends the process
  Channel channel_;
  const CompileLimits limits_;
  NvrtcIdentity identity_;
};

}  // namespace octile
