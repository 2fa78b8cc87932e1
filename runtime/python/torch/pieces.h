// Pieces (octile/pieces.h) of tensors of PyTorch: flat ranges of many weights, quantised step by
// step, each step in one launch.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_PIECES_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_PIECES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensors.h"

namespace octile::binding {

// Makes pieces and returns their token, which is never 0. They keep the tensors alive.
//
// x: the range of each weight, contiguous, of one type: bf16, fp16 or fp32. buffers: uint8 codes,
// fp32 maxima and fp32 scales, contiguous; and for the step TRANSPOSE also the gathered codes, the
// transposed codes, both uint8, and the transposed scales. table: int64 [x.size(), 6 or 9] on the
// host: rows, cols, the range's first element, and where the piece begins in each of the buffers,
// in elements. type: of W, such as "e4m3:128x128:pow2", with fp32 scales. via_bf16: fp32 x is
// rounded to bf16 first. Throws std::invalid_argument for tensors that do not fit.
std::int64_t make_pieces(std::vector<Tensor> x, std::vector<Tensor> buffers, Tensor table,
                         std::string type, bool via_bf16);

// Enqueues a step (octile_pieces_step) of pieces first to first + count - 1. buffers: those that
// the pieces were made of.
void run_pieces(std::vector<Tensor> buffers, std::int64_t token, std::int64_t step,
                std::int64_t first, std::int64_t count);

// Frees pieces once the device has done their work. An unknown token, such as that of a parent of
// fork, is a no-op.
void forget_pieces(std::int64_t token);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_PIECES_H_
