// The records of measured layers (docs/records.md), `what` = "layer model=... layer=...", which
// `octile bench verdict --records` and tools/lab/thresholds.py write: the truth about whether FP8
// pays. Layers without a record are estimated (estimated_times.h).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "runtime/measure/record.h"
#include "tools/models/judge.h"

namespace octile::tools {

// Returns the `what` of a layer's record.
std::string layer_text(const std::string& model, const LayerCase& layer);

// Fills in the measurements of `octile bench verdict`, beside BF16 as the first peer.
void set_layer(const std::string& model, const JudgedLayer& judged, Record& record);

// Sets the details `verdict`, of the record's own timing, and `verdict_eager`, call by call, by the
// record's gain and the details `gain` and `gain_eager`. Errors: kInvalidArgument if it is not a
// record of a layer.
Status set_verdicts(Record& record);

// Returns the verdicts by the last record of the layer on the card; nothing if none of them is a
// graph's with the same rows, groups and quantisers.
std::optional<JudgedLayer> judge(const LayerCase& layer, const std::string& model,
                                 const DeviceSpec& device, std::span<const Record> records);

// Returns the records of the file that OCTILE_VERDICTS names; none if it names none. Errors: those
// of reading it.
Result<std::vector<Record>> named_layer_records();

}  // namespace octile::tools
