// An operand on the host, of which only the rows that a check reads were copied from the device:
// the weights of hundreds of experts take gigabytes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/measure/tensor.h"
#include "runtime/prove/gemm/tensor_arguments.h"

namespace octile {

class HostRows {
 public:
  // Copies the scales, and no row yet. The tensor outlives this object.
  static Result<HostRows> of(const GpuSession& gpu, const DeviceTensor& tensor);

  // Copies rows of the tensor's memory, which are ld() bytes apart.
  Status fetch(std::int64_t first, std::int64_t count);
  Status fetch_all() { return fetch(0, tensor_->rows); }

  // Rows that were not fetched have any values.
  HostOperand operand() const;

 private:
  HostRows(const GpuSession& gpu, const DeviceTensor& tensor) : gpu_(&gpu), tensor_(&tensor) {}
  std::int64_t ld() const;

  const GpuSession* gpu_;
  const DeviceTensor* tensor_;
  // Not initialised, so that the system gives it memory where rows were fetched.
  std::unique_ptr<std::uint8_t[]> data_;
  std::vector<std::uint8_t> scales_;
};

}  // namespace octile
