// Whether FP8 pays in a layer of a model: its GEMMs in BF16 against its GEMMs in FP8 and its share
// of quantising. Times are microseconds of one copy of the layer, for one pass over `tokens` tokens
// (training: the three GEMMs of a step).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/models/mode.h"

namespace octile::tools {

// Where a number comes from. An estimate comes from the cost model or from a roofline fitted to
// BF16 times; a near one is the record of another token count or of a neighbouring shape.
enum class TimeSource { kMeasured, kNear, kEstimated };

struct Microseconds {
  double median = 0;
  double low = 0, high = 0;  // 95 % interval; of an estimate, its known error
  TimeSource source = TimeSource::kEstimated;
};

// The gain from which on FP8 pays as measured, and the bounds of decisions by estimates.
inline constexpr double kLeastGain = 1.02;
inline constexpr double kEstimatePays = 1.25;
inline constexpr double kEstimateLoses = 0.8;

// kMeasure: the estimates do not tell.
enum class Verdict { kPays, kEven, kLoses, kMeasure };

struct LayerVerdict {
  std::string layer;  // role, "q_a_proj"
  Mode mode = Mode::kDecode;
  std::int64_t copies = 0, n = 0, k = 0, groups = 0;
  std::int64_t tokens = 0;
  Microseconds bf16;          // its GEMMs in BF16
  Microseconds fp8_gemms;     // its GEMMs in FP8
  Microseconds quantize;      // its share of the quantisers
  double fused_quantize = 0;  // the same share if norm or activation is fused into the quantiser
  double gain = 0, gain_low = 0, gain_high = 0;  // T16 / T8
  Verdict verdict = Verdict::kMeasure;
  double gain_eager = 0;  // call by call instead of as a graph
  Verdict verdict_eager = Verdict::kMeasure;
  double saved_us = 0;  // copies * (T16 - T8)
};

// How many layers are known from where: a layer as its least known part.
class Sources {
 public:
  void add(const LayerVerdict& layer);
  bool are_measured() const { return all() == count(TimeSource::kMeasured); }
  std::string text() const;  // "4 of 10 layers measured, 2 near, 4 estimated"
  std::int64_t all() const { return counts_[0] + counts_[1] + counts_[2]; }
  std::int64_t count(TimeSource source) const {
    return counts_.at(static_cast<std::size_t>(source));
  }

 private:
  std::array<std::int64_t, 3> counts_{};  // by TimeSource
};

// The whole model in one mode at one token count.
struct ModelVerdict {
  Mode mode = Mode::kDecode;
  std::int64_t tokens = 0;
  Sources by;
  std::int64_t pays = 0;  // layers whose verdict says so
  // "669 GB of weights, an h100 has 80: --tp, --ep"; then its times are of no use. Empty: it fits.
  std::string too_large = {};
  double bf16_us = 0, fp8_us = 0, best_mix_us = 0;
  std::vector<std::string> mix;  // the layers that are FP8 in the best mix
  // Call by call instead of as a graph; the best mix chooses each layer by these times.
  double eager_bf16_us = 0, eager_fp8_us = 0, eager_best_mix_us = 0;
  double weight_bytes_bf16 = 0, weight_bytes_fp8 = 0;
  double copy_bytes_fp8 = 0;  // of weight_bytes_fp8, the FP8 copies of masters in BF16; 0 to serve
  double kept_bytes_bf16 = 0, kept_bytes_fp8 = 0;  // what backward keeps of the inputs; 0 to serve
};

}  // namespace octile::tools
