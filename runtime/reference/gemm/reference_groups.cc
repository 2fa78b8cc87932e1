#include "runtime/reference/gemm/reference_groups.h"

#include <algorithm>

#include "generator/core/layout.h"

namespace octile::reference {
namespace {

constexpr std::int64_t kScaleBytes = 4;  // of fp32, or of a word of four exponents
constexpr std::int64_t kBlock = 128;

const void* behind(const void* p, std::int64_t bytes) {
  return p == nullptr ? nullptr : static_cast<const std::byte*>(p) + bytes;
}
void* behind(void* p, std::int64_t bytes) {
  return p == nullptr ? nullptr : static_cast<std::byte*>(p) + bytes;
}

// Returns offset g, or count g, between 0 and `most`.
std::int64_t clamped(const GemmCall& args, std::int64_t g, std::int64_t most) {
  return std::clamp<std::int64_t>(args.group_rows[g], 0, most);
}

// How many scales of A and of B lie before those of a group.
struct ScalesBefore {
  std::int64_t a = 0, b = 0;
};

// Returns those before group g of rows. Each masked group has room for `room` rows.
ScalesBefore scales_before(const GemmProblem& p, std::int64_t g, std::int64_t room,
                           const GemmPart& part) {
  std::int64_t of_a = 0, of_b = 0;
  switch (scheme_of(p)) {
    case Scheme::kPerTensor:
      return {g, g};
    case Scheme::kPerRow:
      of_a = round_up(room, 4);
      of_b = p.n;
      break;
    case Scheme::kBlockB:
    case Scheme::kRowB:
    case Scheme::kMx:
      of_a = packed_scale_rows(p.a, room, p.k) * part.args.a_scale_ld;
      of_b = packed_scale_rows(p.b, p.n, p.k) * part.args.b_scale_ld;
      break;
  }
  return {p.grouping == Grouping::kMasked ? g * of_a : part.row0, g * of_b};
}

// Moves A, B and D to group g, whose rows begin at row0 of D.
void move_rows(const GemmProblem& p, std::int64_t g, std::int64_t room, GemmPart& part) {
  GemmCall& args = part.args;
  args.a = behind(args.a, part.row0 * args.lda);
  const ScalesBefore before = scales_before(p, g, room, part);
  args.a_scale = behind(args.a_scale, kScaleBytes * before.a);
  args.b = behind(args.b, g * p.n * args.ldb);
  args.b_scale = behind(args.b_scale, kScaleBytes * before.b);
  if (args.d_scale != nullptr) args.d_scale += part.row0;
  args.d = behind(args.d, part.row0 * args.ldd * size_of(p.d.dtype));
}

// Moves A and B to group g's columns, which begin with K-block `k_blocks`, and D to its matrix.
void move_columns(const GemmProblem& p, std::int64_t g, std::int64_t k_blocks, GemmPart& part) {
  GemmCall& args = part.args;
  args.a = behind(args.a, k_blocks * kBlock);
  args.b = behind(args.b, k_blocks * kBlock);
  const bool of_tensors = scheme_of(p) == Scheme::kPerTensor;
  args.a_scale = behind(args.a_scale, kScaleBytes * (of_tensors ? g : k_blocks * args.a_scale_ld));
  args.b_scale = behind(args.b_scale, kScaleBytes * (of_tensors ? g : k_blocks * args.b_scale_ld));
  args.d = behind(args.d, part.row0 * args.ldd * size_of(p.d.dtype));
}

// Moves A, B and D to matrix g of a batch.
void move_matrices(const GemmProblem& p, std::int64_t g, GemmPart& part) {
  GemmCall& args = part.args;
  const BatchStrides& by = args.strides;
  args.a = behind(args.a, g * by.a);
  args.a_scale = behind(args.a_scale, kScaleBytes * g * by.a_scale);
  args.b = behind(args.b, g * by.b);
  args.b_scale = behind(args.b_scale, kScaleBytes * g * by.b_scale);
  args.d = behind(args.d, g * by.d * size_of(p.d.dtype));
}

}  // namespace

std::int64_t rows_of_d(const GemmProblem& p, const GemmCall& args) {
  return (groups_k(p) ? p.groups : whole_results(p)) * args.shape.m;
}

GemmPart part_of(const GemmProblem& p, const GemmCall& args, std::int64_t g,
                 std::int64_t& k_blocks) {
  GemmPart part{p, args, 0};
  part.problem.grouping = Grouping::kNone;
  part.problem.groups = part.problem.batch = 0;
  part.args.group_rows = nullptr;
  part.args.pads_d_scale = false;
  if (is_batched(p)) {
    part.row0 = g * args.shape.m;
    move_matrices(p, g, part);
    return part;
  }
  if (groups_k(p)) {
    const std::int64_t tokens = std::max<std::int64_t>(
        clamped(args, g + 1, args.shape.k) - clamped(args, g, args.shape.k), 0);
    const std::int64_t all = contiguous_columns(args.shape.k, p.groups) / kBlock;
    part.row0 = g * args.shape.m;
    move_columns(p, g, k_blocks, part);
    part.args.shape.k = std::min(tokens, (all - k_blocks) * kBlock);
    k_blocks = std::min(k_blocks + ceil_div(tokens, kBlock), all);
    return part;
  }
  const bool masked = p.grouping == Grouping::kMasked;
  part.row0 = masked ? g * args.shape.m : clamped(args, g, args.shape.m);
  part.args.shape.m =
      masked ? clamped(args, g, args.shape.m)
             : std::max<std::int64_t>(clamped(args, g + 1, args.shape.m) - part.row0, 0);
  move_rows(p, g, args.shape.m, part);
  return part;
}

}  // namespace octile::reference
