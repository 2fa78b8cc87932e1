// Test and demo data that are the same on every host. The generator is counter-based: each element
// is a function of seed and index. The transforms are written out, because the standard library's
// distributions may differ between implementations.
#pragma once

#include <cstdint>
#include <vector>

namespace octile::reference {

// Returns SplitMix64's finaliser over seed and index: 64 well mixed bits.
std::uint64_t random_bits(std::uint64_t seed, std::uint64_t index);
// Returns a value in [0, 1) with 53 random bits.
double random_uniform(std::uint64_t seed, std::uint64_t index);
// Returns a value of N(0, 1) by the Box-Muller transform.
double random_normal(std::uint64_t seed, std::uint64_t index);

// The outlier structure published for the activations of large language models. A few channels are
// tens of times larger than the rest, and single cells lie far above those.
struct ActivationSpec {
  std::int64_t rows = 1024;
  std::int64_t cols = 7168;
  std::uint64_t seed = 1;
  // The columns that are multiplied by 30 and by 50.
  std::int64_t channel_30 = 1000;
  std::int64_t channel_50 = 5000;
  // One cell gets this value; 0 leaves the cell as drawn.
  float outlier = 220.0F;
  std::int64_t outlier_row = 300;
  std::int64_t outlier_col = 3000;
};

// Returns bf16 bits, [rows][cols]. threads 0: one per core.
std::vector<std::uint16_t> synthetic_activations(const ActivationSpec&, int threads = 0);
// Returns 1 for the elements outside the outlier's cell and the two channels, else 0; [rows][cols].
std::vector<std::uint8_t> bulk_of(const ActivationSpec&);
// Returns N(0, sigma) as bf16 bits, [rows][cols].
std::vector<std::uint16_t> synthetic_weight(std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed = 2, double sigma = 0.02,
                                            int threads = 0);

}  // namespace octile::reference
