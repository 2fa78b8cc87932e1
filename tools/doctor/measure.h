// Measures the speeds that a cost model needs of a live GPU.
#pragma once

#include <string>
#include <vector>

#include "cache/measured_device.h"
#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "runtime/measure/record.h"
#include "tools/command.h"

namespace octile::tools {

struct DeviceMeasurement {
  cache::MeasuredDevice device;
  DeviceSpec assumed;           // what the library takes it for without a measurement
  std::vector<Record> records;  // an empty kernel, a stream, and the GEMM that gives the clock
};

// Takes about ten seconds. `device` is "cuda" or "cuda:N". Errors: those of opening the GPU and of
// compiling and running on it; kInternal if the GEMM's result is wrong.
Result<DeviceMeasurement> measure_device(const std::string& device);

// Returns the clock at which the cost model's estimate of the GEMM is its measured time, between
// 0.1 and 4 GHz.
double clock_of(const GemmConfig& config, const GemmProblem& problem, std::int64_t tokens,
                double measured_us, DeviceSpec device);

Json to_json(const DeviceMeasurement& measurement);
std::string to_text(const DeviceMeasurement& measurement);  // a table

}  // namespace octile::tools
