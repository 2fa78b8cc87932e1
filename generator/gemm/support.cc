#include "generator/gemm/support.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "generator/core/checks.h"

namespace octile {
namespace {

constexpr bool kYes = true;
constexpr bool kNo = false;

constexpr std::array kRows = std::to_array<SupportRow>({
    // These match only if a device is asked about.
    {"gemm", "unit=none", kNo,
     "the GPU has no FP8 tensor cores, which came with compute capability 8.9"},
    {"gemm", "tma=0 d=e4m3|e5m2", kNo,
     "not built yet: FP8 D without TMA, which came with compute capability 9.0: quantise the bf16 "
     "D"},
    {"gemm", "unit=tcgen05 inside=0 a=*:1x128 promote=none", kNo,
     "only tcgen05 multiplies block scales here, once its tests with them have passed on the card: "
     "promote=128"},
    {"gemm", "unit=tcgen05 inside=0 a=*:1x32 promote=none", kNo,
     "only tcgen05 multiplies block scales here, once its tests with them have passed on the card: "
     "promote=32"},
    {"gemm", "inside=0 a=*:1x128 promote=none", kNo,
     "no instruction multiplies block scales here (mma_scaled of compute capability 12.x and "
     "tcgen05 of 10.x do): promote=128"},
    {"gemm", "inside=0 a=*:1x32 promote=none", kNo,
     "no instruction multiplies block scales here (mma_scaled of compute capability 12.x and "
     "tcgen05 of 10.x do): promote=32"},
    {"gemm", "unit=tcgen05 serves=mma d=e4m3|e5m2", kNo,
     "only tcgen05 has kernels with FP8 D here, which are used once their tests have passed on the "
     "card: quantise the bf16 D"},
    {"gemm", "bias=e4m3|e5m2|fp16", kNo, "a bias is bf16 or fp32"},
    {"gemm", "promote=none a=*:1x128:f32 b=*:1x128|128x128:f32|pow2|ue8m0x4", kNo,
     "the instruction only multiplies scales that are powers of two: use pow2 or ue8m0x4, or "
     "promote=128"},
    {"gemm", "promote=none a=*:1x128:f32|pow2|ue8m0x4 b=*:1x128|128x128:f32", kNo,
     "the instruction only multiplies scales that are powers of two: use pow2 or ue8m0x4, or "
     "promote=128"},
    {"gemm", "d=fp16 acc=1", kNo,
     "sums over many calls leave the range of fp16: add in bf16 or fp32"},
    {"gemm", "d=e4m3|e5m2 acc=1", kNo,
     "codes cannot be added to: accumulate in bf16 or fp32 and quantise the sum"},
    {"gemm", "sum=1 k=number", kNo,
     "a sum over a batch is a weight gradient, whose tokens lie in panels: k=?"},
    {"gemm", "sum=1 bias=bf16|fp32", kNo, "weight gradients have no bias"},
    {"gemm",
     "sum=1 k=? a=e4m3|e5m2:1x128:f32|pow2 b=e4m3|e5m2:1x128:f32|pow2 d=bf16|fp16|fp32 "
     "promote=32|64|128|none group=none",
     kYes, "the tokens lie in as many panels as the batch has GEMMs; K is never split"},
    {"gemm",
     "sum=1 k=? a=e4m3|e5m2:tensor:f32|pow2 b=e4m3|e5m2:tensor:f32|pow2 d=bf16|fp16|fp32 "
     "promote=128|256|512|none group=none",
     kYes, "as above; A and B have one scale each"},
    {"gemm", "sum=1", kNo,
     "not built yet: sums over batches of operands with other scales, and their FP8 D"},
    {"gemm", "batch=number k=?", kNo,
     "not built yet: batches of weight gradients, which sum the tokens; sum=1 adds them up"},
    {"gemm", "batch=number bias=bf16|fp32", kNo, "not built yet: a bias of a batch"},
    {"gemm", "batch=number d=e4m3|e5m2", kNo,
     "not built yet: FP8 D of a batch; quantise the bf16 D"},
    {"gemm", "batch=number a=*:row|tensor b=*:row|tensor", kNo,
     "not built yet: batches of operands with scales per row or per tensor"},
    {"gemm", "batch=number a=*:1x32:e8m0", kNo, "not built yet: batches of MX operands"},
    {"gemm",
     "batch=number a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:128x128:f32|pow2 "
     "d=bf16|fp16|fp32 promote=32|64|128|none group=none",
     kYes, "a GEMM for each head, say, at constant strides between the matrices; K is never split"},
    {"gemm",
     "batch=number a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 "
     "d=bf16|fp16|fp32 promote=32|64|128|none group=none",
     kYes, "as above, with a scale for each row and K-block of B"},
    // WGMMA takes any pair of FP8 types (PTX ISA, wgmma.mma_async .e4m3 .e5m2), and power-of-two
    // scales are fp32 in memory, so a product need not know of them.
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:128x128:f32|pow2 d=bf16|fp16|fp32 "
     "promote=32|64|128|none group=none",
     kYes,
     "with invariant=1 K is never split, so that a row has the same bits at every token count"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 d=bf16|fp16|fp32 "
     "promote=32|64|128|none group=none",
     kYes, "weight gradients: k=? sums all tokens"},
    // These scales serve all of K, so they are applied to the finished sums.
    {"gemm",
     "a=e4m3|e5m2:row:f32|pow2 b=e4m3|e5m2:row:f32|pow2 d=bf16|fp16|fp32 promote=128|256|512|none "
     "group=none",
     kYes, "each row of the transposed copies has its scale in weight gradients, where k=?"},
    {"gemm",
     "a=e4m3|e5m2:tensor:f32|pow2 b=e4m3|e5m2:tensor:f32|pow2 d=bf16|fp16|fp32 "
     "promote=128|256|512|none group=none",
     kYes, "all three passes; with promote=none the tensor core sums all of K"},
    {"gemm", "group=contiguous|masked bias=bf16|fp32", kNo,
     "no layer of experts has a bias: add it with the activation"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:128x128:f32|pow2 d=bf16|fp16|fp32 "
     "promote=32|64|128|none group=contiguous|masked k=number",
     kYes, "each group of rows has a B of its own; K is never split"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2 b=e4m3|e5m2:1x128:f32|pow2 d=bf16|fp16|fp32 "
     "promote=32|64|128|none group=contiguous k=?",
     kYes, "weight gradients of experts: each group of tokens has a D of its own"},
    {"gemm", "group=contiguous|masked b=e4m3|e5m2:1x128 k=number", kNo,
     "groups of rows are activations by weights in 128x128 blocks"},
    {"gemm", "group=contiguous a=*:1x128:ue8m0x4 k=?", kNo,
     "a word of exponents spans four blocks of K, and a group may begin at any of them: use pow2"},
    {"gemm", "group=contiguous b=*:1x128:ue8m0x4 k=?", kNo,
     "a word of exponents spans four blocks of K, and a group may begin at any of them: use pow2"},
    {"gemm",
     "a=e4m3|e5m2:row:f32|pow2 b=e4m3|e5m2:row:f32|pow2 d=bf16|fp16|fp32 promote=128|256|512|none "
     "group=contiguous|masked k=number",
     kYes, "as without groups; a masked group's scales of A begin at a multiple of 4 rows"},
    {"gemm",
     "a=e4m3|e5m2:tensor:f32|pow2 b=e4m3|e5m2:tensor:f32|pow2 d=bf16|fp16|fp32 "
     "promote=128|256|512|none group=contiguous|masked",
     kYes, "all three passes; each group has a scale of A and one of B"},
    {"gemm", "group=contiguous a=*:row b=*:row k=?", kNo,
     "no quantiser writes a scale of a column for each group of tokens"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:128x128:f32|pow2 "
     "d=e4m3|e5m2:1x128:f32|pow2 promote=32|64|128|none group=none",
     kYes, "D is quantised from the fp32 sums as a quantiser would, and the next GEMM reads it"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 "
     "d=e4m3|e5m2:1x128:f32|pow2 promote=32|64|128|none group=none",
     kYes, "as above, with a scale for each row and K-block of B"},
    {"gemm",
     "a=e4m3|e5m2:1x128:f32|pow2|ue8m0x4 b=e4m3|e5m2:128x128:f32|pow2 "
     "d=e4m3|e5m2:1x128:f32|pow2 promote=32|64|128|none group=contiguous k=number",
     kYes, "as without groups; scales of D after the last group are not written"},
    {"gemm", "group=contiguous|masked d=e4m3|e5m2", kNo,
     "FP8 D of groups needs contiguous rows and B in 128x128 blocks: otherwise quantise D"},
    {"gemm", "a=bf16|fp16|fp32", kNo, "A has to be quantised before an FP8 product"},
    {"gemm", "b=bf16|fp16|fp32", kNo, "B has to be quantised before an FP8 product"},
    {"gemm", "d=e4m3|e5m2:tensor|row|128x128|1x32|32x32", kNo,
     "FP8 D has 1x128 scales: only a row's 128 columns lie in one tile"},
    {"gemm", "d=*:*:bf16|ue8m0x4", kNo, "scales of FP8 D are f32 or pow2"},
    {"gemm", "a=*:*:bf16", kNo, "bf16 scales are for communication: widen A's to f32 first"},
    {"gemm", "b=*:*:bf16", kNo, "bf16 scales are for communication: widen B's to f32 first"},
    {"gemm", "a=*:128x128:f32|pow2 b=*:1x128:f32|pow2", kNo,
     "the 128x128 operand goes second: exchange the operands for D transposed"},
    {"gemm", "a=*:128x128:f32|pow2 b=*:128x128:f32|pow2", kNo,
     "no recipe keeps both operands in 128x128 blocks"},
    {"gemm",
     "a=e4m3|e5m2:1x32:e8m0 b=e4m3|e5m2:1x32|32x32:e8m0 d=bf16|fp16|fp32 promote=32|none "
     "group=none",
     kYes,
     "MX, all three passes; the CUDA cores apply the scales, 32 of K at a time, or with "
     "promote=none "
     "an instruction"},
    {"gemm", "a=*:1x32:e8m0 b=*:1x32|32x32:e8m0 promote=64|128", kNo,
     "an MX scale holds for 32 of K: promote=32"},
    {"gemm", "a=*:1x32:e8m0 b=*:1x32|32x32:e8m0 group=contiguous|masked", kNo,
     "not built yet: groups of operands with MX scales"},
    {"gemm", "a=*:1x32:e8m0 b=*:1x32|32x32:e8m0", kNo, "not built yet: FP8 D of MX operands"},
    {"gemm", "a=*:32x32:e8m0 b=*:1x32:e8m0", kNo,
     "the 32x32 operand goes second: exchange the operands for D transposed"},
    {"gemm", "a=*:32x32:e8m0 b=*:32x32:e8m0", kNo, "no recipe keeps both operands in 32x32 blocks"},
    {"gemm", "", kNo, "no recipe multiplies operands scaled in this way"},
});

// Kernels store 8 columns of a row at a time. TMA strides are multiples of 16 bytes (CUDA driver
// API, cuTensorMapEncodeTiled): 8 elements of bf16, 16 of FP8. K may have any value, because rows
// of A and B may be further apart than they are long.
constexpr std::int64_t kNMultiple = 8;

std::string_view promote_value(int promote) {
  switch (promote) {
    case 32:
      return "32";
    case 64:
      return "64";
    case 128:
      return "128";
    case 256:
      return "256";
    case 512:
      return "512";
    default:
      return "none";
  }
}

Status check_multiples(const GemmProblem& p) {
  if (groups_rows(p) && p.k == 0)
    return refuse_field("k", "0",
                        "with groups of rows is at least 1: which rows are zero is known "
                        "only on the device");
  const std::int64_t multiple = is_fp8(p.d.dtype) ? 2 * kNMultiple : kNMultiple;
  return check_multiple(
      "n", p.n, multiple,
      fmt::format("a row of {} D is stored {} columns at a time", name_of(p.d.dtype), multiple));
}

// Returns the rows of `groups` tensors; more than a tensor can have if that overflows.
std::int64_t rows_of_all(std::int64_t rows, std::int64_t groups) {
  std::int64_t all = 0;
  if (rows == kDynamic) return rows;
  if (__builtin_mul_overflow(rows, groups, &all)) return std::numeric_limits<std::int64_t>::max();
  return all;
}

Status check_sizes(const GemmProblem& p) {
  const std::int64_t of_a = whole_gemms(p);
  const std::int64_t of_b = groups_rows(p) ? p.groups : whole_gemms(p);
  const std::int64_t of_d = groups_k(p) ? p.groups : whole_results(p);
  if (Status s = check_quantized_size("A[m,k]", p.a, rows_of_all(p.m, of_a), p.k); !s) return s;
  if (Status s = check_quantized_size("B[n,k]", p.b, rows_of_all(p.n, of_b), p.k); !s) return s;
  if (is_fp8(p.d.dtype)) return check_quantized_size("D[m,n]", p.d, p.m, p.n);
  return check_plain_size("D[m,n]", p.d.dtype, rows_of_all(p.m, of_d), p.n);
}

}  // namespace

std::span<const SupportRow> gemm_support_rows() { return kRows; }

// Rows look at k only for being dynamic, because numbers have rules instead.
FieldValues field_values(const GemmProblem& p) {
  return {{"k", {p.k == kDynamic ? "?" : "number"}},
          type_value("a", p.a),
          type_value("b", p.b),
          type_value("d", p.d),
          {"acc", {p.accumulate ? "1" : "0"}},
          {"promote", {promote_value(p.promote)}},
          {"bias", {p.bias ? name_of(*p.bias) : "none"}},
          {"group", {name_of(p.grouping)}},
          {"batch", {is_batched(p) ? "number" : "none"}},
          {"sum", {p.sums_batch ? "1" : "0"}},
          {"sentry", {has_sentry(p) ? "1" : "0"}}};
}

const SupportRow& support_of(const GemmProblem& p) {
  return first_match(kRows, operation_of(p), field_values(p));
}

Status check_supported(const GemmProblem& p) {
  if (Status s = check_well_formed(p); !s) return s;
  if (Status s = check_multiples(p); !s) return s;
  if (Status s = check_rows(kRows, operation_of(p), field_values(p), field_values(GemmProblem{}),
                            to_text(p));
      !s)
    return s;
  // Last, because only a combination that the matrix takes has a layout.
  return check_sizes(p);
}

Status check_supported(const GemmProblem& p, const DeviceSpec& device) {
  if (Status s = check_supported(p); !s) return s;
  return check_device_rows(kRows, operation_of(p), field_values(p), fmt::format("'{}'", to_text(p)),
                           device);
}

}  // namespace octile
