#include "runtime/proof/prover.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "runtime/base/environment.h"
#include "runtime/driver/device.h"
#include "runtime/process/find_program.h"
#include "runtime/process/worker_program.h"
#include "runtime/proof/second_context.h"

namespace octile {
namespace {

using Trouble = Channel::Trouble;

constexpr std::string_view kNoProver = "none";

tl::unexpected<ProofFailure> failure(ProofTrouble trouble, std::string sentence) {
  return tl::unexpected(ProofFailure{trouble, std::move(sentence)});
}
tl::unexpected<ProofFailure> unavailable(std::string sentence) {
  return failure(ProofTrouble::kUnavailable, std::move(sentence));
}

template <typename Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

using Troubles = std::span<const ProofTrouble>;
constexpr std::array kOfLoad{ProofTrouble::kNotLoaded};
constexpr std::array kOfRun{ProofTrouble::kNotLaunched, ProofTrouble::kFault};

// Returns the failure of a "refused" message. It may say `of_kernel` of the kernel.
ProofFailure refusal_of(const Channel::Message& message, Troubles of_kernel = {}) {
  int number = 0;
  if (message.size() != 3 || message[0] != kRefused || !read_number(message[1], number))
    return {ProofTrouble::kUnavailable,
            fmt::format("{} sent bytes that are not an answer", kProverName)};
  const auto is_said = [&](ProofTrouble one) { return static_cast<int>(one) == number; };
  const auto said = std::ranges::find_if(of_kernel, is_said);
  return {said == of_kernel.end() ? ProofTrouble::kUnavailable : *said, message[2]};
}

}  // namespace

tl::expected<std::string, std::string> prover_program() {
  auto chosen = environment_path("OCTILE_PROVER");
  if (!chosen) return find_program(kProverName);
  if (*chosen == kNoProver)
    return tl::unexpected(
        std::string("OCTILE_PROVER is none; unset it, and `octile doctor` tests"));
  return std::move(*chosen);
}

Prover::Prover(StartedProgram started, const ProverLimits& limits)
    : process_(std::move(started.process)), channel_(std::move(started.socket)), limits_(limits) {}

Proven<std::unique_ptr<Prover>> Prover::start(const Driver& driver, int ordinal,
                                              const ProverLimits& limits) {
  if (std::string why = why_no_second_context(driver, ordinal); !why.empty())
    return unavailable(std::move(why));
  const auto program = prover_program();
  if (!program) return unavailable(program.error());
  auto process = start_program(*program, driver.file());
  if (!process) return unavailable(process.error());
  std::unique_ptr<Prover> prover(new Prover(std::move(*process), limits));
  Channel::Message hello;
  if (prover->channel_.receive(hello, Channel::Clock::now() + limits.time_to_start))
    return unavailable(fmt::format("\"{}\" does not say that it runs", *program));
  // Nothing is loaded yet that could be to blame.
  if (!hello.empty() && hello[0] == kRefused) return tl::unexpected(refusal_of(hello));
  if (hello.size() != 2 || hello[0] != kProverName)
    return unavailable(fmt::format("\"{}\" is not {}", *program, kProverName));
  if (hello[1] != own_version())
    return unavailable(
        fmt::format("\"{}\" is of Octile {} and not of {}", *program, hello[1], own_version()));
  const auto uuid = device_uuid(driver, ordinal);
  if (!uuid) return unavailable(uuid.error().message);
  const auto ready = prover->ask({"device", *uuid}, limits.time_to_start, {});
  if (!ready) return tl::unexpected(ready.error());
  if ((*ready)[1] != driver.build())
    return unavailable(
        fmt::format("{} has the driver {} and not {}", kProverName, (*ready)[1], driver.build()));
  return prover;
}

Proven<std::uintptr_t> Prover::load(const KernelBuild& build, std::size_t memory_bytes) {
  Channel::Message request{"load", fmt::format("{}", memory_bytes),
                           std::string(build.cubin.begin(), build.cubin.end()),
                           fmt::format("{}", build.emitted.smem_bytes), build.emitted.name};
  for (const EntryPoint& companion : build.emitted.companions) request.push_back(companion.name);
  const auto answer = ask(request, limits_.time_to_start, kOfLoad);
  if (!answer) return tl::unexpected(answer.error());
  std::uintptr_t address = 0;
  if (!read_number((*answer)[1], address)) return tl::unexpected(refusal_of({}));
  return address;
}

Proven<void> Prover::run(std::span<const std::string> launches, std::vector<std::uint8_t>& memory) {
  Channel::Message request{"run", std::string(memory.begin(), memory.end())};
  request.insert(request.end(), launches.begin(), launches.end());
  const auto answer = ask(request, limits_.time_to_run, kOfRun);
  if (!answer) return tl::unexpected(answer.error());
  if ((*answer)[1].size() != memory.size()) return tl::unexpected(refusal_of({}));
  std::ranges::copy((*answer)[1], memory.begin());
  return {};
}

// of_kernel: what the answer may say of the kernel. If the program does launches, its silence may
// be the kernel's doing, and so may its end.
Proven<Channel::Message> Prover::ask(const Channel::Message& request,
                                     std::chrono::milliseconds time, Troubles of_kernel) {
  constexpr std::size_t kFields = 2;
  const bool runs = std::ranges::find(of_kernel, ProofTrouble::kFault) != of_kernel.end();
  const auto deadline = Channel::Clock::now() + time;
  Channel::Message answer;
  auto trouble = channel_.send(request, deadline);
  if (!trouble) trouble = channel_.receive(answer, deadline);
  if (trouble == Trouble::kTooLate) {
    const double seconds = std::chrono::duration<double>(time).count();
    return runs ? failure(ProofTrouble::kHang, fmt::format("it does not end within {} s", seconds))
                : unavailable(fmt::format("{} has no context or no kernel after {} s", kProverName,
                                          seconds));
  }
  if (trouble == Trouble::kClosed)
    return runs ? failure(ProofTrouble::kEnded,
                          fmt::format("the process of {} that ran it ended", kProverName))
                : unavailable(fmt::format("{} ended before it ran a kernel", kProverName));
  if (trouble || answer.size() != kFields || answer[0] == kRefused)
    return tl::unexpected(refusal_of(answer, of_kernel));
  return answer;
}

}  // namespace octile
