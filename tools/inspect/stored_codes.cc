#include "tools/inspect/stored_codes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "runtime/reference/cast.h"
#include "runtime/reference/parallel.h"

namespace octile::tools {
namespace {

constexpr std::size_t kMostWorst = 4;
constexpr std::int64_t kMostCodes = std::int64_t{1} << 20;  // number of codes read at once

// How often each magnitude is among the codes of a block.
struct Histogram {
  std::array<std::int64_t, 128> count{};
  Histogram& operator+=(const Histogram& other) {
    for (std::size_t i = 0; i < count.size(); ++i) count[i] += other.count[i];
    return *this;
  }
};

// Counts the codes of one matrix, strip by strip of rows that share scales.
class Counter {
 public:
  Counter(const StoredMatrices& matrices, std::int64_t part, std::int64_t matrix)
      : matrices_(matrices),
        part_(part),
        matrix_(matrix),
        fp8_(matrices.tensor().dtype == "F8_E4M3" ? DType::kE4M3 : DType::kE5M2),
        block_rows_(matrices.scales ? matrices.scales->block_rows : matrices.rows),
        block_cols_(matrices.scales ? matrices.scales->block_cols : matrices.cols),
        piece_rows_(std::clamp<std::int64_t>(kMostCodes / matrices.cols, 1, block_rows_)),
        pieces_(ceil_div(block_rows_, piece_rows_)) {
    for (std::size_t code = 0; code < values_.size(); ++code) {
      values_[code] = std::fabs(
          static_cast<double>(reference::from_fp8(static_cast<std::uint8_t>(code), fp8_)));
    }
  }

  Result<StoredCodes> run() {
    const std::int64_t strips = ceil_div(matrices_.rows, block_rows_);
    const Status ok =
        reference::try_parallel_for(strips * pieces_, 0, [&](std::int64_t index, int /*thread*/) {
          return count_piece(index / pieces_, index % pieces_);
        });
    if (!ok) return tl::unexpected<Error>(ok.error());
    return std::move(all_);
  }

 private:
  using Strip = std::vector<Histogram>;

  Status count_piece(std::int64_t strip, std::int64_t piece) {
    const std::int64_t row = strip * block_rows_ + piece * piece_rows_;
    const std::int64_t end =
        std::min({matrices_.rows, (strip + 1) * block_rows_, row + piece_rows_});
    if (row >= end) return {};
    std::vector<std::byte> codes(static_cast<std::size_t>((end - row) * matrices_.cols));
    const auto offset = static_cast<std::uint64_t>((part_ * matrices_.rows + row) * matrices_.cols);
    if (Status ok = read_tensor(*matrices_.stored, offset, codes); !ok) return ok;
    Strip counts(static_cast<std::size_t>(ceil_div(matrices_.cols, block_cols_)));
    const std::byte* code = codes.data();
    for (std::int64_t r = row; r < end; ++r) {
      for (std::int64_t col = 0; col < matrices_.cols; col += block_cols_) {
        Histogram& block = counts[static_cast<std::size_t>(col / block_cols_)];
        const std::int64_t count = std::min(block_cols_, matrices_.cols - col);
        for (std::int64_t i = 0; i < count; ++i)
          ++block.count[static_cast<std::size_t>(*code++) & 0x7F];
      }
    }
    if (piece == 0) {
      if (Status ok = look_at_scales(strip); !ok) return ok;
    }
    return finish(strip, counts);
  }

  Status look_at_scales(std::int64_t strip) {
    if (!matrices_.scales) return {};
    std::vector<float> scales;
    const ScaleGrid& grid = *matrices_.scales;
    if (Status ok = read_scales(grid, part_, strip, 1, 0, grid.cols, scales); !ok) return ok;
    const std::scoped_lock lock(mutex_);
    for (const float scale : scales) {
      int exponent = 0;
      const bool is_good = std::isfinite(scale) && scale > 0;
      ++all_.scales;
      all_.bad_scales += is_good ? 0 : 1;
      all_.not_pow2 += is_good && std::frexp(scale, &exponent) != 0.5F ? 1 : 0;
    }
    return {};
  }

  Status finish(std::int64_t strip, const Strip& counts) {
    const std::scoped_lock lock(mutex_);
    if (pieces_ == 1) {
      add(strip, counts);
      return {};
    }
    auto& [all, left] =
        open_.try_emplace(strip, Strip(counts.size()), pieces_of(strip)).first->second;
    for (std::size_t i = 0; i < counts.size(); ++i) all[i] += counts[i];
    if (--left > 0) return {};
    add(strip, all);
    open_.erase(strip);
    return {};
  }

  std::int64_t pieces_of(std::int64_t strip) const {
    const std::int64_t rows = std::min(block_rows_, matrices_.rows - strip * block_rows_);
    return ceil_div(rows, piece_rows_);
  }

  void add(std::int64_t strip, const Strip& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      StoredBlock place{.matrix = matrix_,
                        .row = strip * block_rows_,
                        .col = static_cast<std::int64_t>(i) * block_cols_};
      place.rows = std::min(block_rows_, matrices_.rows - place.row);
      place.cols = std::min(block_cols_, matrices_.cols - place.col);
      all_ += codes_of(counts[i], place);
    }
  }

  StoredCodes codes_of(const Histogram& block, StoredBlock place) const {
    StoredCodes codes;
    const double most = max_finite(fp8_);
    for (std::size_t code = 0; code < values_.size(); ++code) {
      codes.elements += block.count[code];
      if (std::isnan(values_[code])) {
        codes.nans += block.count[code];
      } else if (std::isinf(values_[code])) {
        codes.infinities += block.count[code];
      } else if (block.count[code] > 0) {
        place.largest = values_[code];  // values ascend with codes
      }
      if (values_[code] == most) codes.at_largest = block.count[code];
    }
    codes.zeros = block.count[0];
    if (place.largest == 0) return codes;
    std::int64_t above = 0, nonzero = 0;
    for (std::size_t code = 1; code < values_.size() && values_[code] <= place.largest; ++code) {
      nonzero += block.count[code];
      above += 2 * values_[code] > place.largest ? block.count[code] : 0;
    }
    codes.blocks = 1;
    codes.set_by_one = above == 1 && nonzero > 1 ? 1 : 0;
    codes.half_used = 2 * place.largest <= most ? 1 : 0;
    place.zero_share = static_cast<double>(codes.zeros) / static_cast<double>(codes.elements);
    codes.worst.push_back(place);
    return codes;
  }

  const StoredMatrices& matrices_;
  const std::int64_t part_, matrix_;
  const DType fp8_;
  const std::int64_t block_rows_, block_cols_, piece_rows_, pieces_;
  std::array<double, 128> values_{};
  std::mutex mutex_;
  StoredCodes all_;
  std::map<std::int64_t, std::pair<Strip, std::int64_t>> open_;  // strips with pieces to come
};

}  // namespace

StoredCodes& StoredCodes::operator+=(const StoredCodes& other) {
  elements += other.elements;
  zeros += other.zeros;
  nans += other.nans;
  infinities += other.infinities;
  at_largest += other.at_largest;
  blocks += other.blocks;
  set_by_one += other.set_by_one;
  half_used += other.half_used;
  scales += other.scales;
  not_pow2 += other.not_pow2;
  bad_scales += other.bad_scales;
  // The order does not depend on that of the sums.
  const auto place = [](const StoredBlock& b) {
    return std::tuple(-b.zero_share, b.matrix, b.row, b.col);
  };
  for (const StoredBlock& block : other.worst) {
    const auto at = std::ranges::upper_bound(worst, place(block), {}, place);
    if (worst.size() == kMostWorst && at == worst.end()) continue;
    worst.insert(at, block);
    if (worst.size() > kMostWorst) worst.pop_back();
  }
  return *this;
}

Result<StoredCodes> read_stored_codes(const Subject& subject) {
  StoredCodes all;
  for (const StoredMatrices& part : subject.parts) {
    for (std::int64_t i = 0; i < part.count; ++i) {
      const auto one = Counter(part, i, part.number + i).run();
      if (!one) return tl::unexpected<Error>(one.error());
      all += *one;
    }
  }
  return all;
}

std::vector<std::string> remarks_of(const Subject& subject, const StoredCodes& codes,
                                    bool states_pow2) {
  std::vector<std::string> remarks;
  if (codes.bad_scales > 0) {
    remarks.push_back(
        fmt::format("'{}': {} of {} scales are zero, negative or not finite; allowed: above 0",
                    subject.name, codes.bad_scales, codes.scales));
  }
  if (states_pow2 && codes.not_pow2 > 0) {
    remarks.push_back(fmt::format(
        "'{}': {} of {} scales are not powers of two, as scale_fmt of the config.json states",
        subject.name, codes.not_pow2, codes.scales));
  }
  return remarks;
}

}  // namespace octile::tools
