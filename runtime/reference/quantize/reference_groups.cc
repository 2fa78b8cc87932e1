#include "runtime/reference/quantize/reference_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "generator/quantize/layout.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference_quantizer.h"
#include "runtime/reference/quantize/reference_scale.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

// Number of columns of a transposed copy that a thread takes at a time.
constexpr std::int64_t kColumnsTogether = 16;

Status check_offsets(const QuantizeCall& args) {
  std::int64_t before = 0;
  for (std::int64_t g = 0; g <= args.row_count; ++g) {
    const std::int64_t offset = args.row_index[g];
    if (offset < before || offset > args.rows || (g == 0 && offset != 0)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("offsets[{}] is {}; allowed: 0 for the first, then {} to rows = {}",
                              g, offset, before, args.rows));
    }
    before = offset;
  }
  return {};
}

Status check_counts(const QuantizeCall& args) {
  for (std::int64_t g = 0; g < args.row_count; ++g) {
    if (args.row_index[g] < 0 || args.row_index[g] > args.rows) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("counts[{}] is {}; allowed: 0 to rows = {}", g, args.row_index[g],
                              args.rows));
    }
  }
  return {};
}

class Groups {
 public:
  Groups(const QuantizeProblem& problem, const QuantizeCall& args, int threads)
      : problem_(problem), args_(args), threads_(threads) {
    for (QuantizeProblem* alone : {&rows_alone_, &columns_alone_}) {
      alone->grouping = Grouping::kNone;
      alone->rows = kDynamic;
    }
    rows_alone_.output = QuantizeOutput::kRowwise;
    columns_alone_.output = QuantizeOutput::kTransposed;
    columns_alone_.scale_layout = ScaleLayout::kLinear;
    if (!is_fp8(problem.x.dtype)) return;
    x_scales_ = scale_index(problem.x, args.x_scale_ld);
    // The index counts bytes for exponents.
    const ScaleFormat format = problem.x.scale;
    const bool bytes = format == ScaleFormat::kUe8m0x4 || format == ScaleFormat::kE8M0;
    x_scale_bytes_ = bytes ? 1 : format == ScaleFormat::kBF16 ? 2 : 4;
  }

  Status run() {
    const bool contiguous = problem_.grouping == Grouping::kContiguous;
    if (Status ok = contiguous ? check_offsets(args_) : check_counts(args_); !ok) return ok;
    return contiguous ? contiguous_groups() : masked();
  }

 private:
  // Returns the arguments for group g, whose first row in x is `first`.
  QuantizeCall of_group(std::int64_t g, std::int64_t first, std::int64_t rows) const {
    QuantizeCall a = args_;
    a.rows = rows;
    a.x = static_cast<const char*>(args_.x) + first * args_.ldx * size_of(problem_.x.dtype);
    for (std::size_t i = 0; i < a.more.size(); ++i) {
      if (a.more[i] == nullptr) continue;
      a.more[i] = static_cast<const char*>(a.more[i]) +
                  first * args_.more_ld[i] * size_of(problem_.x.dtype);
    }
    if (args_.x_scale != nullptr) {  // only per-row scales of x can have groups
      const std::int64_t offset = x_scales_(first, 0);
      a.x_scale = static_cast<const char*>(args_.x_scale) + offset * x_scale_bytes_;
    }
    if (a.tap != nullptr) a.tap += first * problem_.cols;
    if (a.row_factor != nullptr) a.row_factor += first;
    a.q = static_cast<char*>(args_.q) + first * args_.ldq;
    a.encode_scale = args_.encode_scale == nullptr ? nullptr : args_.encode_scale + g;
    a.recorded_scale = args_.recorded_scale == nullptr ? nullptr : args_.recorded_scale + g;
    a.amax = args_.amax == nullptr ? nullptr : args_.amax + g;
    return a;
  }

  // Stores the scale of an empty group, as if its amax were 0. Every group has one scale.
  void store_empty(void* scales, std::int64_t g) const {
    const bool given = problem_.policy == ScalePolicy::kDelayed;
    const float encode = given ? args_.encode_scale[g] : encode_scale(0.0F, problem_);
    if (!given && args_.recorded_scale != nullptr) args_.recorded_scale[g] = encode;
    store_scale(scales, problem_.q.scale, g, encode);
  }

  Status masked() {
    Quantizer quantizer(rows_alone_, args_.rows, threads_);
    for (std::int64_t g = 0; g < args_.row_count; ++g) {
      QuantizeCall a = of_group(g, g * args_.rows, args_.row_index[g]);
      a.scale = static_cast<char*>(args_.scale) + g * args_.scale_group_bytes;
      if (a.rows == 0 && per_tensor()) store_empty(args_.scale, g);
      if (a.rows == 0) continue;
      if (Status ok = quantizer.run(a); !ok) return ok;
    }
    return {};
  }

  bool per_tensor() const { return problem_.q.granularity == Granularity::kPerTensor; }
  std::int64_t rows_of(std::int64_t g) const { return args_.row_index[g + 1] - args_.row_index[g]; }

  // Allocates what both copies need, then writes them.
  Status contiguous_groups() {
    std::int64_t most_rows = 0;
    for (std::int64_t g = 0; g < args_.row_count; ++g) most_rows = std::max(most_rows, rows_of(g));
    const std::int64_t all_rows = args_.row_index[args_.row_count];
    std::optional<Quantizer> rows, columns;
    if (has_rowwise(problem_.output))
      rows.emplace(rows_alone_, per_tensor() ? most_rows : all_rows, threads_);
    if (has_transposed(problem_.output)) {
      const auto most = quantized_layout(problem_.q, most_rows, problem_.cols, 0, true);
      if (!most) return tl::unexpected(most.error());
      columns.emplace(columns_alone_, most_rows, threads_);
      codes_.resize(static_cast<std::size_t>(most->data.bytes()));
      scales_.resize(static_cast<std::size_t>(most->scales.bytes()));
    }
    if (rows) {
      if (Status ok = per_tensor() ? rowwise_one_by_one(*rows) : rowwise_at_once(*rows); !ok)
        return ok;
    }
    return columns ? transposed(*columns) : Status{};
  }

  // The rows of all groups form one tensor.
  Status rowwise_at_once(Quantizer& quantizer) const {
    QuantizeCall a = of_group(0, 0, args_.row_index[args_.row_count]);
    if (a.rows == 0) return {};
    return quantizer.run(a);
  }

  // With per-tensor scales each group has its own amax.
  Status rowwise_one_by_one(Quantizer& quantizer) const {
    for (std::int64_t g = 0; g < args_.row_count; ++g) {
      QuantizeCall a = of_group(g, args_.row_index[g], rows_of(g));
      a.scale = static_cast<char*>(args_.scale) + g * args_.scale_group_bytes;
      if (a.rows == 0) store_empty(args_.scale, g);
      if (a.rows == 0) continue;
      if (Status ok = quantizer.run(a); !ok) return ok;
    }
    return {};
  }

  // Writes the transposed copies of contiguous groups, each made separately and put behind the
  // previous ones.
  Status transposed(Quantizer& quantizer) {
    const auto layout = quantized_layout(problem_, args_.rows, args_.row_count, true);
    if (!layout) return tl::unexpected(layout.error());
    std::int64_t start = 0;
    for (std::int64_t g = 0; g < args_.row_count; ++g) {
      if (Status ok = transposed_group(quantizer, g, start, *layout); !ok) return ok;
      start += round_up(rows_of(g), kGroupAlign);
    }
    return {};
  }

  Status transposed_group(Quantizer& quantizer, std::int64_t g, std::int64_t start,
                          const QuantizedLayout& whole) {
    const std::int64_t rows = rows_of(g);
    if (rows == 0) {
      if (per_tensor()) store_empty(args_.scale_transposed, g);
      return {};
    }
    const auto layout = quantized_layout(problem_.q, rows, problem_.cols, 0, true);
    if (!layout) return tl::unexpected(layout.error());
    QuantizeCall a = of_group(g, args_.row_index[g], rows);
    a.q_transposed = codes_.data();
    a.ldq_transposed = layout->data.ld;
    a.scale_transposed = scales_.data();
    a.scale_ld_transposed = layout->scales.ld;
    if (has_rowwise(problem_.output)) a.nonfinite = nullptr;  // counted with the row-wise copy
    if (Status ok = quantizer.run(a); !ok) return ok;
    put_codes(codes_, layout->data.ld, rows, start);
    put_scales(scales_.data(), g, rows, start, whole);
    return {};
  }

  void put_codes(const std::vector<std::uint8_t>& from, std::int64_t from_ld, std::int64_t rows,
                 std::int64_t start) const {
    auto* const to = static_cast<std::uint8_t*>(args_.q_transposed) + start;
    const std::int64_t padded = round_up(rows, kGroupAlign);
    parallel_for(problem_.cols, kColumnsTogether, threads_, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t c = b; c < e; ++c) {
        std::uint8_t* const row =
            std::copy_n(from.data() + c * from_ld, rows, to + c * args_.ldq_transposed);
        std::fill_n(row, padded - rows, std::uint8_t{0});
      }
    });
  }

  // Copies the scales one by one as bits, and fills the padding of the group's part of the array.
  void put_scales(const std::uint8_t* from, std::int64_t g, std::int64_t rows, std::int64_t start,
                  const QuantizedLayout& whole) const;

  QuantizeProblem problem_;
  QuantizeProblem rows_alone_ = problem_;  // of one group's row-wise copy
  QuantizeProblem columns_alone_ = problem_;
  QuantizeCall args_;
  int threads_;
  ScaleIndex x_scales_;  // index for FP8 x
  std::int64_t x_scale_bytes_ = 0;
  std::vector<std::uint8_t> codes_, scales_;  // of one group's transposed copy
};

void Groups::put_scales(const std::uint8_t* from, std::int64_t g, std::int64_t rows,
                        std::int64_t start, const QuantizedLayout& whole) const {
  const ScaleIndex alone = packed_scale_index(problem_.q, rows, problem_.cols, true);
  const ScaleIndex index = scale_index(problem_.q, args_.scale_ld_transposed, true,
                                       problem_.scale_layout == ScaleLayout::kSwizzled);
  const ScaleFormat format = problem_.q.scale;
  const bool ue8m0x4 = format == ScaleFormat::kUe8m0x4;
  const auto bytes = static_cast<std::size_t>(ue8m0x4 ? 1 : whole.scales.element_bytes);
  auto* const to = static_cast<std::uint8_t*>(args_.scale_transposed);
  if (per_tensor()) {
    std::copy_n(from, bytes, to + static_cast<std::size_t>(g) * bytes);
    return;
  }
  // Writes ones up to the group's end, which is the end of its columns. Behind the last group, ones
  // continue to the end of a word of exponents. Then the group's scales replace the ones.
  const bool last = args_.row_index[g + 1] == args_.row_index[args_.row_count];
  const std::int64_t end = ue8m0x4 && last ? round_up(start + rows, 4 * kGroupAlign)
                                           : start + round_up(rows, kGroupAlign);
  const bool columns_are_runs = problem_.q.granularity == Granularity::k1x32;
  const std::int64_t cols = columns_are_runs ? whole.scales.outer : whole.scales.inner;
  for (std::int64_t r = start; r < end; r += index.block_rows) {
    for (std::int64_t c = 0; c < cols; ++c) store_scale(to, format, index(r, c), 1.0F);
  }
  for (std::int64_t r = 0; r < rows; r += index.block_rows) {
    for (std::int64_t c = 0; c < problem_.cols; ++c) {
      std::copy_n(from + static_cast<std::size_t>(alone(r, c)) * bytes, bytes,
                  to + static_cast<std::size_t>(index(start + r, c)) * bytes);
    }
  }
}

}  // namespace

Status quantize_groups(const QuantizeProblem& problem, const QuantizeCall& args, int threads) {
  return Groups(problem, args, threads).run();
}

}  // namespace octile::reference
