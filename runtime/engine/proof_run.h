// Known-answer tests of one device, in processes of octile-prover. The writable root stores their
// outcomes (cache/proofs.h), which replace later tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/proofs.h"
#include "generator/core/error.h"
#include "runtime/engine/library.h"
#include "runtime/engine/target.h"
#include "runtime/families/families.h"
#include "runtime/proof/prover.h"
#include "runtime/proof/recorder.h"

namespace octile {

// The parts of one piece of memory, which has a call's operands and results with the same offsets
// on the host and on the device. Nobody writes the bytes between them, which are compared too.
class Places {
 public:
  std::size_t take(std::size_t bytes, std::string_view name) {
    constexpr std::size_t kAlign = 256, kBetween = 1024;
    const std::size_t at = (end_ + kBetween + kAlign - 1) / kAlign * kAlign;
    end_ = at + bytes;
    parts_.push_back({at, end_, name});
    return at;
  }
  std::size_t bytes() const { return end_ + kAround; }
  // Returns the name of the part to which a byte belongs.
  std::string_view name_of(std::size_t byte) const {
    for (const Part& part : parts_)
      if (byte >= part.begin && byte < part.end) return part.name;
    return "the memory beside the tensors";
  }

 private:
  struct Part {
    std::size_t begin, end;
    std::string_view name;
  };
  static constexpr std::size_t kAround = std::size_t{64} << 10;
  std::size_t end_ = kAround;
  std::vector<Part> parts_;
};

// Returns the address at an offset of `base`.
template <typename T = void>
T* placed(void* base, std::size_t offset) {
  return reinterpret_cast<T*>(static_cast<std::uint8_t*>(base) + offset);
}

// The outcome of a test.
struct Answer {
  enum class Kind : std::uint8_t {
    kRight,
    kWrong,   // what is wrong is the status's error
    kUnknown  // there was no test; why not is the status's error
  };
  Kind kind = Kind::kUnknown;
  Status status;
  // The bits behind the binary point that a matrix unit keeps of a sum: 13, 14 (to 19) or 25 (20 or
  // more), as far as the probes tell them apart. Nothing if it was not read off.
  std::optional<int> sum_bits;
  bool is_remembered = false;
};

class ProofRun {
 public:
  // Whether earlier outcomes count.
  enum class Earlier : std::uint8_t { kCount, kAreRepeated };

  ProofRun(Library& library, const Target& target, Earlier earlier);

  using Memory = std::vector<std::uint8_t>;

  // A call of one kernel, done so many `times`, each of several three times in a row. `given` is
  // copied to the device, args_at(base) returns the call's arguments there, and judge(memory)
  // compares the contents afterwards with the expected ones; it returns the bits of a sum, or 0.
  // compute_expected() computes that on the host, once, and only if no earlier outcome serves.
  // `name` tells the tests of a device apart: "matrix unit mma".
  template <typename Problem, typename ArgumentsAt>
  Answer test(const std::string& name, const Problem& problem, const ConfigOf<Problem>& config,
              const DeviceSpec& device, const Memory& given,
              const std::function<Status()>& compute_expected, int times,
              const ArgumentsAt& args_at, const std::function<Result<int>(const Memory&)>& judge) {
    const auto record = [&](LaunchRecorder& recorder, void* base) -> Status {
      const auto call = complete(problem, args_at(base));
      if (!call) return tl::unexpected<Error>(call.error());
      return enqueue(recorder.site(), resolve(problem, config, device, recorder.kernels()), *call);
    };
    return test({name, problem, config, device, given, compute_expected, times, record, judge});
  }

 private:
  struct Test {
    const std::string& name;
    Problem problem;
    KernelConfig config;
    const DeviceSpec& device;
    const Memory& given;
    const std::function<Status()>& compute_expected;
    int times;
    std::function<Status(LaunchRecorder&, void* base)> record;
    const std::function<Result<int>(const Memory&)>& judge;
  };

  Answer test(const Test& test);
  Result<cache::Proof> proof_of(const Test& test, const KernelBuild& build) const;
  Proven<Answer> try_twice(const Test& test, const KernelBuild& build);
  Proven<Answer> run(const Test& test, const KernelBuild& build);
  std::optional<Answer> remembered(const cache::Proof& proof) const;
  void remember(cache::Proof proof, const Answer& answer);

  Library& library_;
  const Target& target_;
  const Result<std::string> uuid_;  // of the device
  const cache::Proofs proofs_;
  std::vector<cache::Proof> known_;  // none if they are repeated
  std::unique_ptr<Prover> prover_;   // null: none runs
  std::string unavailable_;          // why no prover runs here; empty: one may
  bool has_warned_ = false;          // that outcomes are not read or not kept
};

}  // namespace octile
