// Verifies that a quantise candidate writes the right outputs, all of them and nothing else.
//
//   outputs:   poisoned, with guard zones around each; compared byte by byte, guard zones included
//   small:     enough rows for a tail of every tile, of N(0, 1) and of special values, are
//              quantised twice and compared with the host reference
//   timed:     the tensor that is timed is compared on the device with the first candidate that
//              passed; if they differ, the host reference says which of the two is wrong
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/quantize/problem.h"
#include "runtime/families/quantize/arguments.h"
#include "runtime/measure/loaded_template.h"
#include "runtime/prove/bench.h"
#include "runtime/prove/quantize/operands.h"

namespace octile::tuner {

class QuantizeVerifier {
 public:
  // `templates` and `timed` outlive the verifier, and nothing may write to the input of `timed`.
  static Result<QuantizeVerifier> create(const GpuSession& gpu, LoadedTemplates& templates,
                                         const QuantizeProblem& problem, const QuantizeSlot& timed,
                                         std::uint64_t seed);

  // `run` enqueues one call. If it fails, the candidate is wrong. An Error of check() means that
  // the device is lost.
  using Run = std::function<Status(const QuantizeArguments&, CUstream)>;
  // Returns the verdict on two small inputs.
  Result<Verdict> spot_check(const Run& run);
  // Returns the verdict on the timed input too.
  Result<Verdict> check(const Run& run);

 private:
  using Bytes = std::vector<std::uint8_t>;
  // The place of one output in a buffer that holds all outputs of a call.
  struct Region {
    const char* name = nullptr;
    std::int64_t at = 0, bytes = 0;  // 0 bytes: the problem has no such output
  };
  struct Image {
    std::vector<Region> regions;
    std::int64_t bytes = 0;
    void point(QuantizeArguments& args, void* base) const;
    std::string difference(const Bytes& left, const Bytes& expected) const;
  };
  struct Trial {
    QuantizeSlot input;
    Image image;
    DeviceBuffer outputs;
    Bytes expected;  // includes guard zones
    DeviceBuffer expected_on_device;
  };

  QuantizeVerifier(const GpuSession& gpu, const LoadedTemplate& inspect,
                   const QuantizeProblem& problem, const QuantizeSlot& timed)
      : gpu_(&gpu), inspect_(&inspect), problem_(problem), timed_(&timed) {}
  Result<Image> image_of(std::int64_t rows) const;
  Status add_trial(std::int64_t rows, std::uint64_t seed, Values values);
  Result<Bytes> reference(const QuantizeSlot& input, const Image& image) const;
  Status clear(DeviceBuffer& outputs, const Image& image) const;
  // Returns the sentence why a call could not be launched; empty: it has run.
  Result<std::string> launch(const Run& run, const QuantizeSlot& input, const Image& image,
                             DeviceBuffer& outputs) const;
  Result<Verdict> check_trial(const Run& run, Trial& trial);
  // Returns whether two buffers with an image differ, or may differ.
  Result<bool> differ(const DeviceBuffer& left, const DeviceBuffer& right, const Image& image);
  Result<Verdict> compare_in_full();
  Result<Verdict> settle();

  const GpuSession* gpu_;
  const LoadedTemplate* inspect_;
  QuantizeProblem problem_;
  const QuantizeSlot* timed_;
  std::vector<Trial> trials_;
  Image timed_image_;
  DeviceBuffer timed_outputs_;
  DeviceBuffer accepted_;  // outputs of the first candidate that passed; empty: none has passed
  DeviceBuffer report_;    // of the comparison of two images on the device
};

}  // namespace octile::tuner
