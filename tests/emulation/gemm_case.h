// One emulated call of a GEMM: its operands in memory, its launch by the family's own host code
// (arguments, resolve, launch), and the comparison with the reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "generator/core/layout.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"
#include "runtime/families/gemm/arguments.h"
#include "tests/emulation/device_memory.h"
#include "tests/emulation/gemm_kernels.h"

namespace octile::emulation {

// Bytes between guard zones that nothing may write. All begin as NaN in every type.
class GuardedBytes {
 public:
  GuardedBytes() = default;
  explicit GuardedBytes(std::int64_t bytes);
  std::byte* data() { return bytes_.data() + begin_; }
  const std::byte* data() const { return bytes_.data() + begin_; }
  std::int64_t size() const { return size_; }
  bool guards_are_intact() const;

 private:
  std::vector<std::byte> bytes_;
  std::int64_t begin_ = 0, size_ = 0;
};

struct EmulatedOperand {
  GuardedBytes codes, scales;
  ArrayShape data_shape, scale_shape;
};

struct EmittedGemmVariant {
  GemmProblem problem;
  GemmConfig config;
  EmittedGemm emitted;
};
const std::vector<EmittedGemmVariant>& emitted_gemm_variants();

struct EmulatedGemm {
  std::int64_t m = 0, n = 0, k = 0;
  int clusters = 1;       // that the emulated device runs at once
  bool b_ready = false;   // OCTILE_RUN_B_READY
  bool poisoned = false;  // the last row of D is infinite, which a sentry must see
  bool faint = false;     // the first row of D is subnormal
  bool special = false;   // a quarter of E8M0 scales have any code, NaN among them, and a quarter
                          // of powers of two in fp32 almost any exponent
  std::uint64_t seed = 0;
  std::vector<std::int32_t> group_rows = {};  // offsets or counts, if the problem has groups
  bool breaks_rules = false;                  // of offsets: D is not compared
  std::int64_t batch = 0;                     // GEMMs, if the problem has a batch
  bool side_by_side = false;                  // rows hold all matrices of a batch
  bool shared_b = false;                      // all GEMMs of a batch use the first B
};
std::string to_text(const EmulatedGemm& call);

// Runs a call and returns what is wrong with it, empty: nothing. Elements are small integers, of
// which fp32 sums are exact in any order; scales are any numbers.
std::string run_gemm(const EmittedGemmVariant& variant, const EmulatedGemm& call);

}  // namespace octile::emulation
