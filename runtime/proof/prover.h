// A process of octile-prover: kernels run there in a context of their own, so that one that hangs
// or breaks its context takes nothing of this process with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "runtime/driver/driver.h"
#include "runtime/launch/kernel_build.h"
#include "runtime/process/message.h"
#include "runtime/process/start_program.h"
#include "runtime/proof/messages.h"

namespace octile {

// A context takes a second and a known-answer test a millisecond. The limits are far above that,
// for a machine under load.
struct ProverLimits {
  std::chrono::milliseconds time_to_start = std::chrono::seconds(60);  // a context, or a kernel
  std::chrono::milliseconds time_to_run = std::chrono::seconds(10);
};

struct ProofFailure {
  ProofTrouble trouble = ProofTrouble::kUnavailable;
  std::string sentence;
};
template <typename T>
using Proven = tl::expected<T, ProofFailure>;

// Returns the program that Prover starts: OCTILE_PROVER, else octile-prover beside the library. The
// error says why there is none.
tl::expected<std::string, std::string> prover_program();

// Every process ends when this object does or this process ends, also in the midst of a launch that
// does not. One that is stopped ends when this object does (start_program.h). After a failure it is
// not to be used again.
class Prover {
 public:
  // Starts the program beside the library and has it make a context on the device. Errors:
  // kUnavailable, with the remedy.
  static Proven<std::unique_ptr<Prover>> start(const Driver& driver, int ordinal,
                                               const ProverLimits& limits = {});

  // Loads the kernel and its companions, and allocates memory in place of the last. Returns its
  // address there. Errors: kNotLoaded; kUnavailable.
  Proven<std::uintptr_t> load(const KernelBuild& build, std::size_t memory_bytes);

  // Copies `memory` to the device, does the launches in order and copies it back. Errors:
  // kNotLaunched, kFault, kHang, kEnded; kUnavailable if memory is refused.
  Proven<void> run(std::span<const std::string> launches, std::vector<std::uint8_t>& memory);

 private:
  Prover(StartedProgram started, const ProverLimits& limits);
  Proven<Channel::Message> ask(const Channel::Message& request, std::chrono::milliseconds time,
                               std::span<const ProofTrouble> of_kernel);

  const ProgramProcess process_;  // destroyed after the channel, whose end ends the process
  Channel channel_;
  const ProverLimits limits_;
};

}  // namespace octile
