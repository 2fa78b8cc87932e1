// Verifies that a quantise candidate writes what docs/numerics.md says and nothing else.
//
//   outputs:   poisoned, with guard zones around each; compared byte for byte with the guard zones
//   trials:    small inputs whose rows leave a tail of every tile; one of N(0, 1), one with special
//              values among them; each runs twice and is compared with the host reference
//   timed:     the tensor to be timed is compared with the first candidate that passed; if they
//              differ, the host reference decides which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/quantize/problem.h"
#include "octile/octile.h"
#include "runtime/families/quantize/operands.h"
#include "runtime/tuner/bench.h"

namespace octile::tuner {

class QuantizeVerifier {
 public:
  // Returns a verifier. `timed` must outlive verification, and nothing may write to its input.
  static Result<QuantizeVerifier> create(const GpuSession& gpu, const QuantizeProblem& problem,
                                     const QuantizeSlot& timed, std::uint64_t seed);

  // Verifies one candidate; `run` enqueues one call. An error of `run` is the candidate's fault and
  // gives a wrong verdict. An Error from check() means that the device no longer answers.
  using Run = std::function<Status(const octile_quantize_args&, CUstream)>;
  Result<Verdict> check(const Run& run);

 private:
  using Bytes = std::vector<std::uint8_t>;
  // The place of each output of a run in one buffer.
  struct Region {
    const char* name = nullptr;
    std::int64_t at = 0, bytes = 0;  // 0 bytes: the problem has no such output
  };
  struct Image {
    std::vector<Region> regions;
    std::int64_t bytes = 0;
    void point(octile_quantize_args& args, void* base) const;
    std::string difference(const Bytes& left, const Bytes& expected) const;
  };
  struct Trial {
    QuantizeSlot input;
    Image image;
    DeviceBuffer outputs;
    Bytes expected;  // includes guard zones
  };

  QuantizeVerifier(const GpuSession& gpu, const QuantizeProblem& problem, const QuantizeSlot& timed)
      : gpu_(&gpu), problem_(problem), timed_(&timed) {}
  Result<Image> image_of(std::int64_t rows) const;
  Status add_trial(std::int64_t rows, std::uint64_t seed, Values values);
  Result<Bytes> reference(const QuantizeSlot& input, const Image& image) const;
  Status clear(DeviceBuffer& outputs, const Image& image) const;
  // The outputs of a run, or the sentence why it could not be launched.
  struct Left {
    Bytes bytes;
    std::string refused;
  };
  Result<Left> launch(const Run& run, const QuantizeSlot& input, const Image& image,
                      DeviceBuffer& outputs) const;
  Result<Verdict> compare_in_full(Bytes left);

  const GpuSession* gpu_;
  QuantizeProblem problem_;
  const QuantizeSlot* timed_;
  std::vector<Trial> trials_;
  Image timed_image_;
  DeviceBuffer timed_outputs_;
  Bytes accepted_;  // outputs of the first candidate that passed; empty: none has passed
};

}  // namespace octile::tuner
