// The GEMM family's rows of the support matrix: supported GEMMs, and why others are refused.
#pragma once

#include <span>

#include "generator/core/error.h"
#include "generator/core/support.h"
#include "generator/gemm/problem.h"

namespace octile {

std::span<const SupportRow> gemm_support_rows();
FieldValues field_values(const GemmProblem&);
const SupportRow& support_of(const GemmProblem&);

// Errors: kInvalidArgument for a problem that is not well formed, breaks n % 8 (FP8 D: n % 16) or k
// % 16, or has a tensor beyond 2^63-1 bytes; kUnsupported with the row's reason.
Status check_supported(const GemmProblem&);
// Checks the same, and that kernels of the problem exist for the device.
Status check_supported(const GemmProblem&, const DeviceSpec&);

}  // namespace octile
