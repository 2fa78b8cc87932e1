#include "runtime/families/gemm/reference_groups.h"

#include <algorithm>

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

std::int64_t or_default(std::int64_t ld, std::int64_t value) { return ld == 0 ? value : ld; }

// Returns offset g, or count g, between 0 and `most`.
std::int64_t clamped(const GemmArgs& args, std::int64_t g, std::int64_t most) {
  return std::clamp<std::int64_t>(args.group_rows[g], 0, most);
}

// The rows of words that A's scales have.
std::int64_t scale_rows(const GemmProblem& p) {
  const std::int64_t blocks = ceil_div(p.k, kBlock);
  return p.a.scale == ScaleFormat::kUe8m0x4 ? ceil_div(blocks, 4) : blocks;
}

// Moves A, B and D to group g, whose rows begin at row0 of D.
void move_rows(const GemmProblem& p, std::int64_t g, GemmPart& part) {
  GemmArgs& args = part.args;
  const bool masked = p.grouping == Grouping::kMasked;
  args.lda = or_default(args.lda, p.k);
  args.ldb = or_default(args.ldb, p.k);
  args.ldd = or_default(args.ldd, p.n);
  args.b_scale_ld = or_default(args.b_scale_ld, round_up(ceil_div(p.k, kBlock), 4));
  args.a = behind(args.a, part.row0 * args.lda);
  args.a_scale = behind(args.a_scale,
                        kScaleBytes * (masked ? g * scale_rows(p) * args.a_scale_ld : part.row0));
  args.b = behind(args.b, g * p.n * args.ldb);
  args.b_scale = behind(args.b_scale, kScaleBytes * g * ceil_div(p.n, kBlock) * args.b_scale_ld);
  args.d = behind(args.d, part.row0 * args.ldd * size_of(p.d.dtype));
}

// Moves A and B to the group's columns, which begin with K-block `k_blocks`, and D to its matrix.
void move_columns(const GemmProblem& p, std::int64_t k_blocks, GemmPart& part) {
  GemmArgs& args = part.args;
  const std::int64_t columns = contiguous_columns(part.args.k, p.groups);
  args.lda = or_default(args.lda, columns);
  args.ldb = or_default(args.ldb, columns);
  args.ldd = or_default(args.ldd, p.n);
  args.b_scale_ld = or_default(args.b_scale_ld, round_up(p.n, 4));
  args.a = behind(args.a, k_blocks * kBlock);
  args.b = behind(args.b, k_blocks * kBlock);
  args.a_scale = behind(args.a_scale, kScaleBytes * k_blocks * args.a_scale_ld);
  args.b_scale = behind(args.b_scale, kScaleBytes * k_blocks * args.b_scale_ld);
  args.d = behind(args.d, part.row0 * args.ldd * size_of(p.d.dtype));
}

}  // namespace

std::int64_t rows_of_d(const GemmProblem& p, const GemmArgs& args) {
  return p.grouping == Grouping::kMasked || groups_k(p) ? p.groups * args.m : args.m;
}

GemmPart part_of(const GemmProblem& p, const GemmArgs& args, std::int64_t g,
                 std::int64_t& k_blocks) {
  GemmPart part{p, args, 0};
  part.problem.grouping = Grouping::kNone;
  part.problem.groups = 0;
  part.args.group_rows = nullptr;
  part.args.a_scale_ld = or_default(args.a_scale_ld, round_up(args.m, 4));
  if (groups_k(p)) {
    const std::int64_t tokens =
        std::max<std::int64_t>(clamped(args, g + 1, args.k) - clamped(args, g, args.k), 0);
    const std::int64_t all = contiguous_columns(args.k, p.groups) / kBlock;
    part.row0 = g * args.m;
    move_columns(p, k_blocks, part);
    part.args.k = std::min(tokens, (all - k_blocks) * kBlock);
    k_blocks = std::min(k_blocks + ceil_div(tokens, kBlock), all);
    return part;
  }
  const bool masked = p.grouping == Grouping::kMasked;
  part.row0 = masked ? g * args.m : clamped(args, g, args.m);
  part.args.m = masked ? clamped(args, g, args.m)
                       : std::max<std::int64_t>(clamped(args, g + 1, args.m) - part.row0, 0);
  part.problem.m = kDynamic;
  move_rows(p, g, part);
  return part;
}

}  // namespace octile::reference
