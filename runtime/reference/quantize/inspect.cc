#include "runtime/reference/quantize/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "generator/core/layout.h"
#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/reference.h"
#include "runtime/reference/quantize/reference_kernels.h"
#include "runtime/reference/scale_index.h"

namespace octile::reference {
namespace {

// Panels have whole blocks of every granularity but long ones: a multiple of 128 rows and columns,
// so that a panel and its codes stay in a core's second cache. If a row shares a scale, panels have
// whole rows up to a bound.
constexpr std::int64_t kBlockEdge = 128;
constexpr std::int64_t kMostPanelCols = 4096, kMostRowCols = 32768;
constexpr std::int64_t kPanelElements = kBlockEdge * kMostPanelCols;
// If columns are contiguous, this many panels one below the other are read together, or as many as
// have the elements of the largest panel: their columns are pieces of a kilobyte.
constexpr std::int64_t kPanelsTogether = 4, kElementsTogether = kBlockEdge * kMostRowCols;

bool has_row_scales(std::span<const TensorType> types) {
  return std::ranges::any_of(
      types, [](const TensorType& type) { return type.granularity == Granularity::kPerRow; });
}

std::size_t element_bytes(DType dtype) { return dtype == DType::kFP32 ? 4 : 2; }

// The panels of a matrix, row by row, and in groups that are read together.
class Panels {
 public:
  Panels(const MatrixSource& source, bool whole_rows, double sample)
      : rows_(source.rows()),
        cols_(source.cols()),
        panel_cols_(std::min(cols_, whole_rows ? kMostRowCols : kMostPanelCols)) {
    const std::int64_t wanted = std::max(kBlockEdge, kPanelElements / panel_cols_);
    panel_rows_ = std::min(rows_, wanted / kBlockEdge * kBlockEdge);
    across_ = ceil_div(cols_, panel_cols_);
    down_ = ceil_div(rows_, panel_rows_);
    all_ = down_ * across_;
    const auto chosen = static_cast<std::int64_t>(std::ceil(static_cast<double>(all_) * sample));
    count_ = std::clamp<std::int64_t>(chosen, 1, all_);
    if (!source.has_contiguous_columns() || count_ != all_) return;
    const std::int64_t most = std::min(kPanelsTogether, kElementsTogether / most_elements());
    together_ = std::clamp<std::int64_t>(most, 1, down_);
  }

  std::int64_t count() const { return count_; }
  std::int64_t most_elements() const { return panel_rows_ * panel_cols_; }
  std::int64_t most_elements_of_group() const { return together_ * most_elements(); }

  // The group's panels are `first`, first + step, ...
  struct Group {
    std::int64_t first = 0, step = 1, count = 1;
  };
  std::int64_t groups() const {
    return together_ == 1 ? count_ : ceil_div(down_, together_) * across_;
  }
  Group group(std::int64_t index) const {
    if (together_ == 1) return {index};
    const std::int64_t down = index / across_ * together_;
    return {down * across_ + index % across_, across_, std::min(together_, down_ - down)};
  }
  bool has_whole_rows() const { return across_ == 1; }

  PanelPlace operator[](std::int64_t index) const {
    // The middle one of each of `count` equal parts.
    const std::int64_t at = count_ == all_ ? index : (2 * index + 1) * all_ / (2 * count_);
    const std::int64_t row = at / across_ * panel_rows_, col = at % across_ * panel_cols_;
    return {row, col, std::min(panel_rows_, rows_ - row), std::min(panel_cols_, cols_ - col)};
  }

 private:
  std::int64_t rows_, cols_, panel_cols_, panel_rows_ = 0;
  std::int64_t across_ = 1, down_ = 1, all_ = 1, count_ = 1, together_ = 1;
};

// Blocks that may span several panels: the tensor, or rows longer than a panel.
class LongBlocks {
 public:
  LongBlocks(const TensorType& type, const MatrixSource& source, const Panels& panels)
      : type_(type), rows_(source.rows()), cols_(source.cols()) {
    if (type.granularity == Granularity::kPerTensor) count_ = 1;
    if (type.granularity == Granularity::kPerRow && !panels.has_whole_rows()) count_ = rows_;
    amax_.resize(static_cast<std::size_t>(count_));
    sums_.resize(static_cast<std::size_t>(count_));
  }

  bool are_used() const { return count_ > 0; }
  bool are_rows() const { return count_ > 1 || type_.granularity == Granularity::kPerRow; }
  std::vector<float>& amax() { return amax_; }
  std::vector<RunSums>& sums() { return sums_; }
  const std::vector<RunSums>& sums() const { return sums_; }
  bool has_one_set_by_one() const { return std::ranges::any_of(sums_, Loss::is_set_by_one); }
  std::size_t of_row(std::int64_t row) const {
    return are_rows() ? static_cast<std::size_t>(row) : 0;
  }
  BlockLoss place_of(std::size_t block) const {
    BlockLoss place{.rows = rows_, .cols = cols_};
    if (are_rows()) place.row = static_cast<std::int64_t>(block), place.rows = 1;
    return place;
  }

 private:
  TensorType type_;
  std::int64_t rows_, cols_, count_ = 0;
  std::vector<float> amax_;
  std::vector<RunSums> sums_;
};

// The part of one type's loss that a panel has.
struct PanelLoss {
  Loss loss;                              // of whole blocks
  std::map<std::size_t, RunSums> parts;   // of long blocks, by their number
  std::map<std::size_t, RestSums> rests;  // likewise, of those that one element sets
};

struct PanelResult {
  ValueCounts values;
  std::vector<float> row_amax;  // of rows longer than a panel
  std::vector<PanelLoss> losses;
};

// A thread's memory.
struct Workbench {
  std::vector<std::byte> panel;
  std::vector<std::uint8_t> codes;
  std::vector<std::byte> scales;
  std::vector<float> wide;
  std::vector<float> amaxes;  // of the panel's blocks, which have these rows and columns
  std::pair<std::int64_t, std::int64_t> amaxes_of;
};

class Inspector {
 public:
  Inspector(const MatrixSource& source, std::span<const TensorType> types,
            const InspectOptions& options)
      : source_(source),
        dtype_(source.dtype()),
        types_(types),
        options_(options),
        panels_(source, has_row_scales(types), options.sample),
        results_(static_cast<std::size_t>(panels_.count())),
        threads_(most_threads()) {
    for (const TensorType& type : types) long_blocks_.emplace_back(type, source, panels_);
    benches_.resize(static_cast<std::size_t>(threads_));
  }

  Result<Inspection> run() {
    const bool has_long = std::ranges::any_of(long_blocks_, &LongBlocks::are_used);
    if (has_long) {
      if (Status ok = each_panel(&Inspector::survey); !ok) return tl::unexpected(ok.error());
      find_long_amaxes();
    }
    surveyed_ = has_long;
    if (Status ok = each_panel(&Inspector::measure); !ok) return tl::unexpected(ok.error());
    sum_parts();
    if (std::ranges::any_of(long_blocks_, &LongBlocks::has_one_set_by_one)) {
      if (Status ok = each_panel(&Inspector::measure_rests); !ok) return tl::unexpected(ok.error());
    }
    return sum();
  }

 private:
  int most_threads() const {
    const auto elements = static_cast<std::size_t>(panels_.most_elements());
    const std::size_t bytes =
        source_.scratch_bytes(panels_.most_elements_of_group()) + 2 * elements;
    const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kPanelBytes / bytes));
    const int threads = thread_count(panels_.groups(), 1, options_.threads);
    return static_cast<int>(std::min<std::int64_t>(most, threads));
  }

  using Work = Status (Inspector::*)(const PanelPlace&, const Panel&, Workbench&, PanelResult&);

  // Reads each panel and gives it to `work`. Returns the error of the first panel that has one.
  Status each_panel(Work work) {
    return try_parallel_for(panels_.groups(), threads_, [&](std::int64_t index, int thread) {
      return do_group(work, panels_.group(index), benches_[static_cast<std::size_t>(thread)]);
    });
  }

  Status do_group(Work work, const Panels::Group& group, Workbench& bench) {
    PanelPlace all = panels_[group.first];
    const PanelPlace last = panels_[group.first + (group.count - 1) * group.step];
    all.rows = last.row + last.rows - all.row;
    bench.panel.resize(source_.scratch_bytes(panels_.most_elements_of_group()));
    bench.wide.resize(std::max(bench.wide.size(), static_cast<std::size_t>(all.cols)));
    const auto read = source_.read(all, bench.panel);
    if (!read) return tl::unexpected<Error>(read.error());
    for (std::int64_t i = 0; i < group.count; ++i) {
      const std::int64_t index = group.first + i * group.step;
      const PanelPlace place = panels_[index];
      const Panel panel{row_of(*read, place.row - all.row), read->ld};
      bench.amaxes_of = {};
      const Status ok =
          (this->*work)(place, panel, bench, results_[static_cast<std::size_t>(index)]);
      if (!ok) return ok;
    }
    return {};
  }

  const void* row_of(const Panel& panel, std::int64_t row) const {
    return static_cast<const std::byte*>(panel.x) +
           static_cast<std::size_t>(row * panel.ld) * element_bytes(dtype_);
  }

  // Counts the panel's values, and finds the maxima of the rows that long blocks need.
  Status survey(const PanelPlace& place, const Panel& panel, Workbench& bench,
                PanelResult& result) {
    const bool keep_rows = std::ranges::any_of(long_blocks_, [](const LongBlocks& blocks) {
      return blocks.are_used() && blocks.are_rows();
    });
    ValueCounts& values = result.values;
    values.elements = place.rows * place.cols;
    for (std::int64_t row = 0; row < place.rows; ++row) {
      widen(panel.x, dtype_, row * panel.ld, place.cols, bench.wide.data());
      const RunCounts counts = counts_of_run(bench.wide.data(), place.cols);
      values.zeros += counts.zeros;
      values.nans += counts.nans;
      values.infinities += counts.infinities;
      const auto amax = std::bit_cast<float>(finite_amax_bits(bench.wide.data(), place.cols));
      values.amax = std::max(values.amax, amax);
      if (keep_rows) result.row_amax.push_back(amax);
    }
    return {};
  }

  void find_long_amaxes() {
    for (LongBlocks& blocks : long_blocks_) {
      if (!blocks.are_used()) continue;
      for (std::int64_t i = 0; i < panels_.count(); ++i) {
        const PanelResult& result = results_[static_cast<std::size_t>(i)];
        const PanelPlace place = panels_[i];
        if (!blocks.are_rows()) {
          blocks.amax()[0] = std::max(blocks.amax()[0], result.values.amax);
          continue;
        }
        for (std::int64_t row = 0; row < place.rows; ++row) {
          float& amax = blocks.amax()[blocks.of_row(place.row + row)];
          amax = std::max(amax, result.row_amax[static_cast<std::size_t>(row)]);
        }
      }
    }
  }

  Status measure(const PanelPlace& place, const Panel& panel, Workbench& bench,
                 PanelResult& result) {
    if (!surveyed_) {
      if (Status ok = survey(place, panel, bench, result); !ok) return ok;
    }
    result.losses.resize(types_.size());
    for (std::size_t i = 0; i < types_.size(); ++i) {
      const Status ok = long_blocks_[i].are_used()
                            ? measure_parts(i, place, panel, bench, result)
                            : measure_blocks(types_[i], place, panel, bench, result.values,
                                             result.losses[i].loss);
      if (!ok) return ok;
    }
    return {};
  }

  QuantizeProblem problem_of(const TensorType& type, std::int64_t cols) const {
    QuantizeProblem problem;
    problem.cols = cols;
    problem.x = {dtype_};
    problem.q = type;
    return problem;
  }

  // Quantises rows of the panel into the bench's codes and scales.
  Status quantize_rows(const QuantizeProblem& problem, const void* x, std::int64_t ld,
                       std::int64_t rows, const float* encode, Workbench& bench) const {
    const auto layout = quantized_layout(problem.q, rows, problem.cols, problem.cols);
    if (!layout) return tl::unexpected<Error>(layout.error());
    bench.codes.resize(std::max(bench.codes.size(), static_cast<std::size_t>(rows * problem.cols)));
    bench.scales.resize(
        std::max(bench.scales.size(), static_cast<std::size_t>(layout->scales.bytes())));
    QuantizeCall call;
    call.rows = rows;
    call.x = x;
    call.ldx = ld;
    call.q = bench.codes.data();
    call.ldq = problem.cols;
    call.scale = bench.scales.data();
    call.scale_ld = layout->scales.ld;
    call.encode_scale = encode;
    return quantize(problem, call, 1);
  }

  // Widens a run of the panel. NaNs and infinities, which have no part in any sum, become zeros.
  void widen_run(const Panel& panel, std::int64_t row, std::int64_t col, std::int64_t count,
                 const ValueCounts& values, float* out) const {
    widen(panel.x, dtype_, row * panel.ld + col, count, out);
    if (values.nans + values.infinities > 0) clear_nonfinite(out, count);
  }

  // Calls use(x, offset, count) for the runs of a block's rows, `offset` within the panel.
  template <typename Use>
  void each_run(const Panel& panel, const BlockLoss& block, std::int64_t cols, Workbench& bench,
                const ValueCounts& values, const Use& use) const {
    for (std::int64_t row = block.row; row < block.row + block.rows; ++row) {
      widen_run(panel, row, block.col, block.cols, values, bench.wide.data());
      use(bench.wide.data(), row * cols + block.col, block.cols);
    }
  }

  Status measure_blocks(const TensorType& type, const PanelPlace& place, const Panel& panel,
                        Workbench& bench, const ValueCounts& values, Loss& loss) const {
    const QuantizeProblem problem = problem_of(type, place.cols);
    if (Status ok = quantize_rows(problem, panel.x, panel.ld, place.rows, nullptr, bench); !ok)
      return ok;
    const ScaleIndex index = packed_scale_index(type, place.rows, place.cols);
    find_block_amaxes(index, place, panel, bench, values);
    const std::int64_t block_rows = std::min(index.block_rows, place.rows);
    const std::int64_t block_cols = std::min(index.block_cols, place.cols);
    auto amax = bench.amaxes.begin();
    for (std::int64_t row = 0; row < place.rows; row += block_rows) {
      if (block_rows == 1) widen_run(panel, row, 0, place.cols, values, bench.wide.data());
      const float* const row_values = block_rows == 1 ? bench.wide.data() : nullptr;
      for (std::int64_t col = 0; col < place.cols; col += block_cols) {
        const BlockLoss block{.row = row,
                              .col = col,
                              .rows = std::min(block_rows, place.rows - row),
                              .cols = std::min(block_cols, place.cols - col)};
        const float scale = load_scale(bench.scales.data(), type.scale, index(row, col));
        const RunScale run{type.dtype, scale, *amax++};
        measure_block(run, place, panel, row_values, block, bench, values, loss);
      }
    }
    return {};
  }

  // Keeps the largest finite magnitude of each block, for types of the same blocks.
  void find_block_amaxes(const ScaleIndex& index, const PanelPlace& place, const Panel& panel,
                         Workbench& bench, const ValueCounts& values) const {
    const std::int64_t block_rows = std::min(index.block_rows, place.rows);
    const std::int64_t block_cols = std::min(index.block_cols, place.cols);
    const auto across = static_cast<std::size_t>(ceil_div(place.cols, block_cols));
    if (std::exchange(bench.amaxes_of, {block_rows, block_cols}) ==
        std::pair(block_rows, block_cols)) {
      return;
    }
    bench.amaxes.assign(static_cast<std::size_t>(ceil_div(place.rows, block_rows)) * across, 0.0F);
    for (std::int64_t row = 0; row < place.rows; ++row) {
      float* const amaxes =
          bench.amaxes.data() + static_cast<std::size_t>(row / block_rows) * across;
      widen_run(panel, row, 0, place.cols, values, bench.wide.data());
      for (std::size_t i = 0; i < across; ++i) {
        const std::int64_t col = static_cast<std::int64_t>(i) * block_cols;
        const std::uint32_t bits =
            finite_amax_bits(bench.wide.data() + col, std::min(block_cols, place.cols - col));
        amaxes[i] = std::max(amaxes[i], std::bit_cast<float>(bits));
      }
    }
  }

  // `row_values` has the values of the block's row, if blocks have one row.
  void measure_block(const RunScale& scale, const PanelPlace& place, const Panel& panel,
                     const float* row_values, BlockLoss block, Workbench& bench,
                     const ValueCounts& values, Loss& loss) const {
    const auto each = [&](const auto& use) {
      if (row_values == nullptr) return each_run(panel, block, place.cols, bench, values, use);
      use(row_values + block.col, block.row * place.cols + block.col, block.cols);
    };
    RunSums sums;
    RestSums rest;
    each([&](const float* x, std::int64_t at, std::int64_t count) {
      sums += sums_of_run(x, bench.codes.data() + at, count, scale);
    });
    if (Loss::is_set_by_one(sums)) {
      each([&](const float* x, std::int64_t at, std::int64_t count) {
        rest += rest_of_run(x, bench.codes.data() + at, count, scale);
      });
    }
    block.row += place.row;
    block.col += place.col;
    loss.add(sums, rest, scale.amax, block);
  }

  // Quantises parts of long blocks with the scale of the whole block. `use` is given the runs of
  // each part, and its block.
  template <typename Use>
  Status each_part(std::size_t type, const PanelPlace& place, const Panel& panel, Workbench& bench,
                   const ValueCounts& values, const Use& use) {
    LongBlocks& blocks = long_blocks_[type];
    QuantizeProblem problem = problem_of(types_[type], place.cols);
    problem.q.granularity = Granularity::kPerTensor;
    const std::int64_t rows = blocks.are_rows() ? 1 : place.rows;
    for (std::int64_t row = 0; row < place.rows; row += rows) {
      const std::size_t block = blocks.of_row(place.row + row);
      problem.policy = ScalePolicy::kCurrent;
      const float encode = encode_scale(blocks.amax()[block], problem);
      problem.policy = ScalePolicy::kDelayed;  // the scale is given
      const void* const x = row_of(panel, row);
      if (Status ok = quantize_rows(problem, x, panel.ld, rows, &encode, bench); !ok) return ok;
      const RunScale scale{problem.q.dtype, load_scale(bench.scales.data(), problem.q.scale, 0),
                           blocks.amax()[block]};
      const BlockLoss part{.row = row, .rows = rows, .cols = place.cols};
      each_run(panel, part, place.cols, bench, values,
               [&](const float* wide, std::int64_t at, std::int64_t count) {
                 use(block, wide, bench.codes.data() + at - row * place.cols, count, scale);
               });
    }
    return {};
  }

  Status measure_parts(std::size_t type, const PanelPlace& place, const Panel& panel,
                       Workbench& bench, PanelResult& result) {
    std::map<std::size_t, RunSums>& parts = result.losses[type].parts;
    return each_part(
        type, place, panel, bench, result.values,
        [&](std::size_t block, const float* x, const std::uint8_t* codes, std::int64_t count,
            const RunScale& scale) { parts[block] += sums_of_run(x, codes, count, scale); });
  }

  // Sums what is left of long blocks beside the one element that sets their scale.
  Status measure_rests(const PanelPlace& place, const Panel& panel, Workbench& bench,
                       PanelResult& result) {
    for (std::size_t type = 0; type < types_.size(); ++type) {
      const LongBlocks& blocks = long_blocks_[type];
      if (!blocks.has_one_set_by_one()) continue;
      std::map<std::size_t, RestSums>& rests = result.losses[type].rests;
      const Status ok = each_part(type, place, panel, bench, result.values,
                                  [&](std::size_t block, const float* x, const std::uint8_t* codes,
                                      std::int64_t count, const RunScale& scale) {
                                    if (!Loss::is_set_by_one(blocks.sums()[block])) return;
                                    rests[block] += rest_of_run(x, codes, count, scale);
                                  });
      if (!ok) return ok;
    }
    return {};
  }

  // Adds the parts of long blocks in their order.
  void sum_parts() {
    for (std::size_t type = 0; type < types_.size(); ++type) {
      for (const PanelResult& result : results_) {
        for (const auto& [block, sums] : result.losses[type].parts)
          long_blocks_[type].sums()[block] += sums;
      }
    }
  }

  // Adds the panels in their order, so that the sums do not depend on threads.
  Inspection sum() {
    Inspection all;
    all.losses.resize(types_.size());
    for (const PanelResult& result : results_) {
      all.values += result.values;
      for (std::size_t i = 0; i < types_.size(); ++i) all.losses[i] += result.losses[i].loss;
    }
    for (std::size_t i = 0; i < types_.size(); ++i) add_long_blocks(i, all.losses[i]);
    return all;
  }

  void add_long_blocks(std::size_t type, Loss& loss) {
    LongBlocks& blocks = long_blocks_[type];
    std::vector<RestSums> rests(blocks.sums().size());
    for (const PanelResult& result : results_) {
      for (const auto& [block, rest] : result.losses[type].rests) rests[block] += rest;
    }
    for (std::size_t block = 0; block < rests.size(); ++block)
      loss.add(blocks.sums()[block], rests[block], blocks.amax()[block], blocks.place_of(block));
  }

  const MatrixSource& source_;
  const DType dtype_;
  std::span<const TensorType> types_;
  const InspectOptions& options_;
  Panels panels_;
  std::vector<LongBlocks> long_blocks_;
  std::vector<PanelResult> results_;
  int threads_;
  std::vector<Workbench> benches_;
  bool surveyed_ = false;
};

}  // namespace

Result<Inspection> inspect(const MatrixSource& source, std::span<const TensorType> types,
                           const InspectOptions& options) {
  if (source.rows() < 1 || source.cols() < 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the matrix is {} x {}; allowed: at least one row and one column",
                            source.rows(), source.cols()));
  }
  return Inspector(source, types, options).run();
}

}  // namespace octile::reference
