// Messages: FP8 rows that travel with their 1x128 scales. A message has the codes of a row, then
// its fp32 scales, padded to 16 bytes with scales of 1.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_ROW_MESSAGES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_ROW_MESSAGES_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "tensors.h"

namespace octile::binding {

// Quantises x [rows, columns], bf16, fp16 or fp32, columns a multiple of 16: uint8 [rows, bytes].
// type: with fp32 scales of 1x128 blocks.
Tensor quantize_messages(Tensor x, std::string type);

// Returns codes [rows, columns] and scales, flat, as layers of experts read them, of which row r is
// messages[index[r]]. index: int32 [rows], on the same device.
std::tuple<Tensor, Tensor> open_messages(Tensor messages, Tensor index, std::string type,
                                         std::int64_t columns);

// Quantises contiguous groups of FP8 rows [tokens, k] of a type with scales along the rows again,
// along their columns: the transposed copy and its scales, flat, as layers of experts read them.
// offsets: int32 [groups + 1].
std::tuple<Tensor, Tensor> requantize_groups(Tensor codes, Tensor scales, Tensor offsets,
                                             std::string type);
// Returns the layout of such a copy.
octile_quantized_layout layout_of_groups(const octile_tensor_type& type, std::int64_t rows,
                                         std::int64_t cols, std::int64_t groups,
                                         const Place& place);

// Prepares all of this for lo to hi rows of x and of gradients of a recipe. x stands for the type
// and the device. training: also what backward needs.
void prepare_messages(Tensor x, std::int64_t recipe, std::int64_t columns, std::int64_t lo,
                      std::int64_t hi, bool training);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_ROW_MESSAGES_H_
