// The quantise family's rows of the support matrix: supported problems, and why others are refused.
#pragma once

#include <span>

#include "generator/core/error.h"
#include "generator/core/support.h"
#include "generator/quantize/problem.h"

namespace octile {

std::span<const SupportRow> quantize_support_rows();
FieldValues field_values(const QuantizeProblem&);
const SupportRow& support_of(const QuantizeProblem&);

// Errors: kInvalidArgument for a problem that is not well formed or has a tensor beyond 2^63-1
// bytes; kUnsupported with the row's reason.
Status check_supported(const QuantizeProblem&);
// Checks the same, and that kernels of the problem exist for the device.
Status check_supported(const QuantizeProblem&, const DeviceSpec&);

}  // namespace octile
