// The loss of activations with outliers in FP8, by the number of elements that share a scale.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/types.h"
#include "runtime/reference/synthetic.h"
#include "tools/common/handles.h"
#include "tools/common/text_table.h"

namespace octile::tools {

struct GranularityLoss {
  Granularity granularity = Granularity::kNone;
  std::int64_t scale_count = 0;  // without padding
  std::int64_t scale_bytes = 0;  // with padding
  std::int64_t data_bytes = 0;
  double snr_db = 0;
  double snr_bulk_db = 0;    // SNR without the outlier and the two large channels
  double flushed_share = 0;  // share of nonzero elements that became zero
  // The same losses if codes are integers from -448 to 448, as tutorials take them.
  double integer_snr_db = 0;
  double integer_snr_bulk_db = 0;
  double integer_flushed_share = 0;
};

struct OutlierStudy {
  float outlier = 0;
  std::vector<GranularityLoss> rows;  // per tensor, 128x128, 1x128
};

// Quantises the activations per tensor, in 128x128 and in 1x128 blocks, on the host. Calls `began`
// with the name of each step.
Result<OutlierStudy> study_outlier(const reference::ActivationSpec& spec,
                                   const std::function<void(const std::string&)>& began);

Json to_json(const OutlierStudy& study);
TextTable to_table(const OutlierStudy& study);

}  // namespace octile::tools
