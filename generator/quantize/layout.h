// Layouts of a quantise problem's outputs: of a tensor (core/layout.h), of groups of rows, and of
// scales in the order of block-scaled tensor cores.
#pragma once

#include <cstdint>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "generator/quantize/problem.h"

namespace octile {

// Swizzled scales come in tiles of 128 x 4, 512 bytes each (cuBLAS, "1D Block Scaling Factors
// Layout"; PTX ISA, tcgen05 scale layouts).
inline constexpr std::int64_t kSwizzleRows = 128;

// Makes the scales of a layout of [rows, cols] lie by rows: [rows][roundup(ceil(cols/128),4)].
void lay_scales_by_row(QuantizedLayout& layout, std::int64_t rows, std::int64_t cols);

// Layout of one output. Without groups: of [rows, cols]. Contiguous groups: the row-wise output is
// one tensor of `rows` rows, the transposed one has contiguous_columns() columns; one scale a group
// where there is one a tensor. Masked and stacked groups: `groups` tensors of [rows, cols], one
// after the other. Flat ranges: of the whole tensor, without gaps between rows. Errors: as
// quantized_layout; kInvalidArgument for a count of groups below 0 or above kMostGroups.
Result<QuantizedLayout> quantized_layout(const QuantizeProblem& problem, std::int64_t rows,
                                         std::int64_t groups, bool transposed);

}  // namespace octile
