// Tuning records that timed a kernel as it was before today's templates.
#pragma once

#include <vector>

#include "cache/tuning_record.h"
#include "generator/core/device_spec.h"
#include "runtime/tuner/exploration.h"

namespace octile::tools {

// Returns true if the record names the source that it timed, and its problem and configuration have
// another one today, or none.
bool timed_another_source(const cache::TuningRecord& record, const DeviceSpec& device);

// Returns the tasks of the records of a device for which timed_another_source() is true. `records`
// are in order of precedence: of several for a problem, bucket and device, the first counts.
std::vector<tuner::TuningTask> tasks_to_refresh(const std::vector<cache::TuningRecord>& records,
                                                const DeviceSpec& device);

// Returns the records of a folder, the last one first, and then those that the library carries.
// Errors: kInvalidArgument if its files cannot be read.
Result<std::vector<cache::TuningRecord>> all_records(const std::string& folder);

}  // namespace octile::tools
