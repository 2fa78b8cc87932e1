// Random operands on a GPU, in several copies that calls rotate over, so that none finds its own in
// L2.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "generator/problem.h"
#include "tools/common/gpu_session.h"
#include "tools/common/product.h"

namespace octile::tools {

// bf16 [rows][cols] of N(0, 1), drawn from a pool whose length is prime: rows differ.
std::vector<std::uint16_t> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed);

// How many copies of what one call touches pass twice the L2 together; at least 2.
int rotation_slots(const GpuSession& gpu, std::int64_t bytes_of_a_call);

Result<DeviceBuffer> copy_of(const GpuSession& gpu, const DeviceBuffer& buffer);
Result<DeviceTensor> copy_of(const GpuSession& gpu, const DeviceTensor& tensor);

// What one product reads and writes.
struct GemmSlot {
  DeviceTensor a, b;
  DeviceBuffer d;
};
Result<std::vector<GemmSlot>> make_gemm_slots(const LibraryHandle& library, const GpuSession& gpu,
                                              const GemmProblem& problem, std::int64_t m,
                                              int slots);

// Poisons the slot's D, runs, and compares D with FP64 on the slot's operands.
Result<ProductCheck> run_and_check(const GpuSession& gpu, const GemmProblem& problem,
                                   GemmSlot& slot, const std::function<Status()>& run);

// What one quantisation reads and writes.
struct QuantizeSlot {
  DeviceBuffer x;
  DeviceTensor q;
};
Result<std::vector<QuantizeSlot>> make_quantize_slots(const LibraryHandle& library,
                                                      const GpuSession& gpu,
                                                      const QuantizeProblem& problem,
                                                      std::int64_t rows, int slots);

}  // namespace octile::tools
