#include "runtime/reference/quantize/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace octile::reference {

double snr_db(double signal, double noise) {
  using Limits = std::numeric_limits<double>;
  if (noise != 0.0) return 10.0 * std::log10(signal / noise);
  return signal == 0.0 ? Limits::quiet_NaN() : Limits::infinity();
}

double rank_db(double snr_db, double flushed_share) {
  if (std::isnan(snr_db) || flushed_share == 0.0) return snr_db;
  return std::min(snr_db, -10.0 * std::log10(flushed_share));
}

ValueCounts& ValueCounts::operator+=(const ValueCounts& other) {
  elements += other.elements;
  zeros += other.zeros;
  nans += other.nans;
  infinities += other.infinities;
  amax = std::max(amax, other.amax);
  return *this;
}

void Loss::add(const RunSums& block, const RestSums& rest, float amax, BlockLoss place) {
  if (block.nonzero == 0) return;
  place.is_set_by_one = is_set_by_one(block);
  signal += block.signal;
  noise += block.noise;
  nonzero += block.nonzero;
  flushed += block.flushed;
  saturated += block.saturated;
  ++blocks;
  if (place.is_set_by_one) {
    ++set_by_one;
    rest_signal += rest.signal;
    rest_noise += rest.noise;
    place.noise_share = rest.noise == 0 ? 0 : rest.noise / rest.signal;
  } else {
    rest_signal += block.signal;
    rest_noise += block.noise;
    bulk_signal += block.signal;
    bulk_noise += block.noise;
    place.noise_share = block.noise == 0 ? 0 : block.noise / block.signal;
  }
  place.noise = block.noise;
  place.flushed_share = static_cast<double>(block.flushed) / static_cast<double>(block.nonzero);
  place.amax = amax;
  insert(place);
}

Loss& Loss::operator+=(const Loss& later) {
  signal += later.signal;
  noise += later.noise;
  rest_signal += later.rest_signal;
  rest_noise += later.rest_noise;
  bulk_signal += later.bulk_signal;
  bulk_noise += later.bulk_noise;
  nonzero += later.nonzero;
  flushed += later.flushed;
  saturated += later.saturated;
  blocks += later.blocks;
  set_by_one += later.set_by_one;
  for (const BlockLoss& block : later.worst()) insert(block);
  return *this;
}

void Loss::set_matrix(std::int64_t matrix) {
  for (BlockLoss& block : worst_) block.matrix = matrix;
}

void Loss::transpose_places() {
  for (BlockLoss& block : worst_) {
    std::swap(block.row, block.col);
    std::swap(block.rows, block.cols);
  }
}

// The earlier one of equal blocks stays first.
void Loss::insert(const BlockLoss& block) {
  const auto lost_share = [](const BlockLoss& one) {
    return one.flushed_share > 0.5 ? std::max(one.noise_share, one.flushed_share) : one.noise_share;
  };
  const auto is_worse = [&](const BlockLoss& a, const BlockLoss& b) {
    const double of_a = lost_share(a), of_b = lost_share(b);
    return of_a != of_b ? of_a > of_b : a.noise > b.noise;
  };
  if (worst_count_ == kMostWorst && !is_worse(block, worst_.back())) return;
  std::size_t at = std::min(worst_count_, kMostWorst - 1);
  for (; at > 0 && is_worse(block, worst_[at - 1]); --at) worst_[at] = worst_[at - 1];
  worst_[at] = block;
  worst_[at].snr_db = octile::reference::snr_db(1, block.noise_share);
  worst_count_ = std::min(worst_count_ + 1, kMostWorst);
}

}  // namespace octile::reference
