// The loss of quantising a matrix to FP8: sums over blocks, which panels of a matrix add to each
// other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/reference/quantize/loss_kernels.h"

namespace octile::reference {

// A matrix's own values.
struct ValueCounts {
  std::int64_t elements = 0, zeros = 0, nans = 0, infinities = 0;
  float amax = 0;  // the largest finite magnitude
  std::int64_t nonzero() const { return elements - zeros - nans - infinities; }
  ValueCounts& operator+=(const ValueCounts& other);
};

// Returns 10 log10(signal / noise): infinite without noise, minus infinity without signal, NaN of
// nothing.
double snr_db(double signal, double noise);

// Returns the lower of an SNR and of the flushed share of nonzero elements as one: a share of 1 %
// is 20 dB. Large elements that share a scale hide in the SNR that they flush the others. NaN of
// nothing.
double rank_db(double snr_db, double flushed_share);

// Elements that share a scale.
struct BlockLoss {
  std::int64_t matrix = 0, row = 0, col = 0;  // of the first element
  std::int64_t rows = 0, cols = 0;
  // Without the element that sets the scale, if one element does: it has most of the block's signal
  // and hides what becomes of the others.
  double snr_db = 0;
  double noise_share = 0;    // noise / signal, of which the SNR is made
  double noise = 0;          // the sum of all squared errors
  double flushed_share = 0;  // of nonzero elements
  float amax = 0;
  bool is_set_by_one = false;  // every other element is at most half as large as the largest
};

// Sums over blocks. Elements that are NaN or infinite count nowhere.
struct Loss {
  static constexpr std::size_t kMostWorst = 4;

  double signal = 0, noise = 0;  // the sums of x^2 and (x - code * scale)^2 in fp64
  // Without the elements that alone set the scale of their block. A large one has most of a
  // tensor's signal, and may have no error.
  double rest_signal = 0, rest_noise = 0;
  double bulk_signal = 0, bulk_noise = 0;  // without the blocks of those elements
  std::int64_t nonzero = 0;
  std::int64_t flushed = 0;                 // nonzero, and the code is zero
  std::int64_t saturated = 0;               // beyond what rounds to the format's largest value
  std::int64_t blocks = 0, set_by_one = 0;  // blocks with a nonzero element

  // Returns true if one element sets the scale of a block with these sums. The only nonzero element
  // of a block hides nothing.
  static bool is_set_by_one(const RunSums& block) { return block.above == 1 && block.nonzero > 1; }
  // Adds a block. `rest` has the sums without that element, and is not read of other blocks.
  // `place` has position and extents; the rest of it is not read.
  void add(const RunSums& block, const RestSums& rest, float amax, BlockLoss place);
  // Adds what later panels, or further matrices, have.
  Loss& operator+=(const Loss& later);
  // Says which of several matrices the blocks are of.
  void set_matrix(std::int64_t matrix);
  // Gives the blocks the positions that they have in the matrix's transpose.
  void transpose_places();
  // Returns the blocks of the lowest SNR, the lowest first. A block of which more than half is
  // flushed counts as having lost that share, however large its other elements are.
  std::span<const BlockLoss> worst() const { return {worst_.data(), worst_count_}; }

  double snr() const { return snr_db(signal, noise); }
  double rest_snr() const { return snr_db(rest_signal, rest_noise); }
  double bulk_snr() const { return snr_db(bulk_signal, bulk_noise); }
  double flushed_share() const { return share_of_nonzero(flushed); }
  double rank() const { return rank_db(rest_snr(), flushed_share()); }
  double share_of_nonzero(std::int64_t count) const {
    return nonzero == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(nonzero);
  }

 private:
  void insert(const BlockLoss& block);

  std::array<BlockLoss, kMostWorst> worst_{};
  std::size_t worst_count_ = 0;
};

}  // namespace octile::reference
