// The file of --records, which gets a line for each measurement.
#pragma once

#include <string>
#include <vector>

#include "runtime/measure/record.h"
#include "tools/common/handles.h"

namespace octile::tools {

// Refuses, before anything is measured, a file that holds something else. An empty path stands for
// none.
Status check_records_file(const std::string& path);

// Appends the records to the file, if there is a path.
Status keep_records(const std::string& path, const std::vector<Record>& records);

// Returns what --json prints: the device, and the records as they are in the file.
Json document_of(const GpuSession& gpu, const std::vector<Record>& records);

}  // namespace octile::tools
