// Test and demo data that are the same on every host: a counter-based generator (each element is a
// function of seed and index) and transforms written out, where the standard library's
// distributions may differ between implementations.
#pragma once

#include <cstdint>
#include <vector>

namespace octile::reference {

// SplitMix64's finaliser over seed and index: 64 well mixed bits.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index);
// In [0, 1), 53 bits.
double random_uniform(std::uint64_t seed, std::uint64_t index);
// N(0, 1) by Box and Muller's transform.
double random_normal(std::uint64_t seed, std::uint64_t index);

// The outlier structure published for the activations of large language models: a few channels tens
// of times larger than the rest, and single cells far above those.
struct ActivationSpec {
  std::int64_t rows = 1024;
  std::int64_t cols = 7168;
  std::uint64_t seed = 1;
  // Columns multiplied by 30 and by 50.
  std::int64_t channel_30 = 1000;
  std::int64_t channel_50 = 5000;
  // One cell of this value; 0 leaves it as drawn.
  float outlier = 220.0F;
  std::int64_t outlier_row = 300;
  std::int64_t outlier_col = 3000;
};

// bf16 bits, [rows][cols]. threads 0: one per core.
std::vector<std::uint16_t> synthetic_activations(const ActivationSpec&, int threads = 0);
// 1 for the elements outside the outlier's cell and the two channels, else 0; [rows][cols].
std::vector<std::uint8_t> bulk_of(const ActivationSpec&);
// N(0, sigma) as bf16 bits, [rows][cols].
std::vector<std::uint16_t> synthetic_weight(std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed = 2, double sigma = 0.02,
                                            int threads = 0);

}  // namespace octile::reference
