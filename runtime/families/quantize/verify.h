// Whether a quantise candidate writes what the contract says, all of it and nothing else.
//
//   outputs:   poisoned, guard zones around each; compared byte for byte, guard zones included
//   small:     rows for a tail of every tile, of N(0, 1) and of special values among them, twice,
//              against the host reference
//   timed:     the tensor that is timed, against the first candidate that passed; where they
//              differ, the host reference says which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/problem.h"
#include "octile/octile.h"
#include "runtime/families/quantize/operands.h"
#include "runtime/tuner/bench.h"

namespace octile::tuner {

class QuantizeVerifier {
 public:
  // `timed` outlives verification; nothing may write to its input.
  static Result<QuantizeVerifier> create(const GpuSession& gpu, const QuantizeProblem& problem,
                                     const QuantizeSlot& timed, std::uint64_t seed);

  // `run` enqueues one call. What it fails with is the candidate's fault; an Error is not: the
  // device answers no more.
  using Run = std::function<Status(const octile_quantize_args&, CUstream)>;
  Result<Verdict> check(const Run& run);

 private:
  using Bytes = std::vector<std::uint8_t>;
  // Where the outputs of a run lie in one buffer.
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
    Bytes expected;  // guard zones included
  };

  QuantizeVerifier(const GpuSession& gpu, const QuantizeProblem& problem, const QuantizeSlot& timed)
      : gpu_(&gpu), problem_(problem), timed_(&timed) {}
  Result<Image> image_of(std::int64_t rows) const;
  Status add_trial(std::int64_t rows, std::uint64_t seed, Values values);
  Result<Bytes> reference(const QuantizeSlot& input, const Image& image) const;
  Status clear(DeviceBuffer& outputs, const Image& image) const;
  // What the run left, or the sentence why it could not be launched.
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
  Bytes accepted_;  // of the first that passed; empty: none has
};

}  // namespace octile::tuner
