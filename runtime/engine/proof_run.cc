#include "runtime/engine/proof_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "cache/key.h"
#include "runtime/driver/device.h"
#include "runtime/engine/cache_entry.h"
#include "runtime/process/worker_program.h"

namespace octile {
namespace {

Answer unknown(const Error& error) {
  return {Answer::Kind::kUnknown, tl::unexpected<Error>(error), {}, false};
}
Answer wrong(std::string sentence) {
  return {Answer::Kind::kWrong, fail(ErrorCode::kDeviceError, std::move(sentence)), {}, false};
}
Answer right(int sum_bits) {
  Answer answer{Answer::Kind::kRight, {}, {}, false};
  if (sum_bits > 0) answer.sum_bits = sum_bits;
  return answer;
}

std::string_view text_of(const std::vector<std::uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

ProofRun::ProofRun(Library& library, const Target& target, Earlier earlier)
    : library_(library),
      target_(target),
      uuid_(device_uuid(*target.driver, target.ordinal)),
      proofs_(library.engine.options().writable_root, uuid_.value_or(""),
              library.engine.options().file_ops) {
  if (earlier == Earlier::kAreRepeated) return;
  auto known = proofs_.read();
  if (known) {
    known_ = std::move(*known);
  } else {
    // put() replaces a file of code 0; it has the other errors too.
    has_warned_ = known.error().code != 0;
    library_.logger.log(LogLevel::kWarning,
                        fmt::format("the tests of {} are repeated: {}", target.spec.full_name,
                                    known.error().sentence));
  }
}

Result<cache::Proof> ProofRun::proof_of(const Test& test, const KernelBuild& build) const {
  if (!uuid_) return tl::unexpected<Error>(uuid_.error());
  cache::Proof proof;
  proof.device = *uuid_;
  proof.driver = target_.driver->build();
  proof.test = fmt::format("{}: {}", test.name, to_text(test.problem));
  // The expected memory follows from these.
  proof.digest = cache::digest_hex(fmt::format("{}\n{}\n{}\n{}\n{}", own_version(),
                                               to_text(test.problem), to_text(test.config),
                                               text_of(build.cubin), text_of(test.given)));
  return proof;
}

// A cubin of the cache that the driver refuses is passed over, as load_built() does.
Answer ProofRun::test(const Test& test) {
  for (bool has_expected = false;;) {
    auto built = library_.engine.build(test.problem, test.config, test.device);
    if (!built) return unknown(built.error());
    auto proof = proof_of(test, *built->kernel);
    if (!proof) return unknown(proof.error());
    if (auto earlier = remembered(*proof)) return std::move(*earlier);
    if (!has_expected) {
      if (Status ok = test.compute_expected(); !ok) return unknown(ok.error());
      has_expected = true;
    }
    const auto answer = try_twice(test, *built->kernel);
    const ProofFailure none{};
    const ProofFailure& failure = answer ? none : answer.error();
    if (!answer && failure.trouble == ProofTrouble::kNotLoaded &&
        library_.engine.pass_over(*built, failure.sentence))
      continue;
    const bool is_unknown =
        failure.trouble == ProofTrouble::kUnavailable || failure.trouble == ProofTrouble::kEnded;
    if (!answer && is_unknown) return unknown({ErrorCode::kDeviceError, failure.sentence});
    const Answer found = answer ? *answer : wrong(failure.sentence);
    // The driver may take from the next process a kernel that it refused to this one.
    if (answer || failure.trouble == ProofTrouble::kFault || failure.trouble == ProofTrouble::kHang)
      remember(std::move(*proof), found);
    return found;
  }
}

// A kernel that fails has a second trial, in another process: the machine may have been stopped
// meanwhile. If the process ended, that counts apart, and the second such end is the last.
Proven<Answer> ProofRun::try_twice(const Test& test, const KernelBuild& build) {
  int failed = 0, ended = 0;
  for (;;) {
    auto answer = run(test, build);
    if (answer || answer.error().trouble == ProofTrouble::kUnavailable) return answer;
    const bool has_ended = answer.error().trouble == ProofTrouble::kEnded;
    if (++(has_ended ? ended : failed) == 2) return answer;
  }
}

// A process that was not used for a minute may be gone. Another one then takes its place.
Proven<Answer> ProofRun::run(const Test& test, const KernelBuild& build) {
  const auto failed = [&](const ProofFailure& failure) {
    prover_.reset();  // its context may be broken, and its kernel may still run
    if (failure.trouble == ProofTrouble::kUnavailable) unavailable_ = failure.sentence;
    return tl::unexpected(failure);
  };
  if (!unavailable_.empty()) return failed({ProofTrouble::kUnavailable, unavailable_});
  Proven<std::uintptr_t> address;
  for (const bool is_old : {prover_ != nullptr, false}) {
    if (prover_ == nullptr) {
      auto started = Prover::start(*target_.driver, target_.ordinal);
      if (!started) return failed(started.error());
      prover_ = std::move(*started);
    }
    address = prover_->load(build, test.given.size());
    if (address || !is_old || address.error().trouble != ProofTrouble::kUnavailable) break;
    prover_.reset();
  }
  if (!address) return failed(address.error());
  LaunchRecorder recorder(*target_.driver, build);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process
  if (Status ok = test.record(recorder, reinterpret_cast<void*>(*address)); !ok)
    return failed({ProofTrouble::kUnavailable, ok.error().message});
  // A test that is done again and again also has launches that follow each other.
  constexpr int kInARow = 3;
  std::vector<std::string> launches;
  for (int i = 0; i < (test.times > 1 ? kInARow : 1); ++i)
    launches.insert(launches.end(), recorder.launches().begin(), recorder.launches().end());
  int fewest_bits = 0;
  for (int i = 0; i < test.times; ++i) {
    Memory memory = test.given;
    if (const auto ran = prover_->run(launches, memory); !ran) return failed(ran.error());
    const Result<int> sum_bits = test.judge(memory);
    if (!sum_bits) return wrong(sum_bits.error().message);
    fewest_bits = i == 0 ? *sum_bits : std::min(fewest_bits, *sum_bits);
  }
  return right(fewest_bits);
}

std::optional<Answer> ProofRun::remembered(const cache::Proof& proof) const {
  const auto found = std::ranges::find_if(known_, [&](const cache::Proof& other) {
    return other.device == proof.device && other.driver == proof.driver &&
           other.test == proof.test && other.digest == proof.digest;
  });
  if (found == known_.end()) return std::nullopt;
  Answer answer = found->is_right() ? right(found->sum_bits) : wrong(found->wrong);
  answer.is_remembered = true;
  return answer;
}

void ProofRun::remember(cache::Proof proof, const Answer& answer) {
  if (!answer.status) proof.wrong = answer.status.error().message;
  proof.sum_bits = answer.sum_bits.value_or(0);
  proof.date = utc_now();
  if (const auto kept = proofs_.put(proof); !kept && !std::exchange(has_warned_, true))
    library_.logger.log(LogLevel::kWarning,
                        fmt::format("the tests of {} are repeated by the next process: {}",
                                    target_.spec.full_name, kept.error().sentence));
}

}  // namespace octile
