// Scales and codes of a GEMM's operands, read where the caller has put them.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_OPERAND_SCALES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_OPERAND_SCALES_H_

#include <cstdint>
#include <string>

#include "octile/octile.h"
#include "tensors.h"

namespace octile::binding {

// Scales of an operand as a GEMM reads them, and their leading dimension. 0: the layout's own.
struct OperandScales {
  Tensor tensor;
  std::int64_t ld = 0;
};

// All throw std::invalid_argument for other arguments.

// Returns the scales of codes [rows, k] in the layout of their type, contiguous and of any shape,
// or fp32 scales in rows. These are read where the caller has put them, or copied on the stream of
// `place` if a GEMM cannot read their strides.
OperandScales operand_scales(const Tensor& scales, const octile_tensor_type& type,
                             std::int64_t rows, std::int64_t k, const Place& place,
                             const std::string& argument);
// Returns the fp32 scales of codes [groups, rows, k]: those of each group as rows that are read in
// place, and the groups one behind the other.
OperandScales stacked_scales(const Tensor& scales, const octile_tensor_type& type,
                             std::int64_t groups, std::int64_t rows, std::int64_t k,
                             const Place& place, const std::string& argument);
// Returns the leading dimension of codes [groups, rows, k], the groups one behind the other.
std::int64_t stacked_ld(const Tensor& codes, const octile_tensor_type& type, std::int64_t groups,
                        std::int64_t rows, std::int64_t k, const Place& place,
                        const std::string& argument);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_OPERAND_SCALES_H_
