// Common parts of the cases of GEMMs: filling operands, running an explicit configuration, and
// judging one of several GEMMs.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "runtime/reference/gemm/reference_groups.h"
#include "tests/gpu/session.h"
#include "tests/support/gemm_variants.h"

namespace octile::tests {

// Compiles the kernels on every core. One that does not compile is reported by its case.
void compile_variants(const std::vector<GemmVariant>& variants);

// Runs a kernel as a plan would.
void run_kernel(GpuSession& gpu, const GemmProblem& problem, const GemmConfig& config,
                const GemmArguments& args, CUstream stream);

// An operand to fill: codes [rows][ld], of which `cols` columns exist, and its scales.
struct OperandToFill {
  DeviceBuffer& codes;
  DeviceBuffer& scales;
  TensorType type;
  std::int64_t rows = 0, cols = 0, ld = 0;
};
// Fills it at random. If `within_fp16`, sums stay within fp16.
void fill_operand(GpuSession& gpu, const OperandToFill& operand, bool within_fp16,
                  std::uint64_t seed);

// Makes the verdict of several GEMMs: on the device, then on the host.
DeviceBuffer make_verdict(GpuSession& gpu);
// Compares the D of one of the problem's GEMMs with FP64, in the verdict.
void judge_part(GpuSession& gpu, const GemmProblem& problem, const reference::GemmPart& part,
                double c, const DeviceBuffer& verdict);
// Expects no violation.
void expect_no_violation(GpuSession& gpu, const DeviceBuffer& verdict);

// Returns what a sentry's buffer says.
octile_squares squares_in(GpuSession& gpu, const DeviceBuffer& sentry);
// Expects the sum of squares to be so much, within a relative tolerance.
void expect_like_squares(const octile_squares& seen, double expected, double tolerance);

// Returns every byte of the buffer.
std::vector<std::uint8_t> bytes_of(GpuSession& gpu, const DeviceBuffer& buffer);

}  // namespace octile::tests
