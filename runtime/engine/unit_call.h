// A call of a form: its operands, and what is made of the D that comes back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "runtime/engine/proof_run.h"
#include "runtime/engine/unit_forms.h"

namespace octile {

// One call's operands and results, which lie in one piece of memory.
//
// A and B are small integers, with zeros of both signs, subnormal codes and a NaN, and scales that
// differ by so little that all sums are exact. FP32 D that nothing is added to also has probes: two
// products of a row and the last column, of which a unit of few bits loses the second.
class UnitCall {
 public:
  UnitCall(const GemmProblem& problem, const UnitForm& form);

  GemmArguments at(void* base) const;
  // Computes the results on the host, as launches of a test leave them.
  Status run_on_host();
  // Compares another call's memory with this one's results, and returns the bits behind the point
  // that the unit keeps of a sum, or 0 without probes. Errors name the first element that differs.
  Result<int> judge(const std::vector<std::uint8_t>& found) const;

  const std::vector<std::uint8_t>& memory() const { return memory_; }

 private:
  struct Probe;
  // An operand's codes and scales, or those of all matrices of groups or of a batch.
  struct Operand {
    TensorType type;
    std::size_t rows = 0, matrices = 1;  // of a matrix
    std::size_t ld = 0, codes = 0, scales = 0;
    QuantizedLayout layout;  // of a matrix
  };
  enum class Side { kA, kB };
  static const Probe kCoarse, kFine;

  Operand place(Side side, std::int64_t all_rows, std::int64_t matrices);
  void place_results();
  void fill_codes(const Operand& operand, Side side);
  void fill_scales(const Operand& operand, Side side);
  void fill_groups();
  void fill_results();
  bool has_tokens_at(std::size_t column) const;
  float scale_of(const Probe& probe) const;
  float result(const std::vector<std::uint8_t>& memory, std::size_t element) const;
  std::optional<bool> keeps(const Probe& probe, const std::vector<std::uint8_t>& found) const;
  Status check_elsewhere(const std::vector<std::uint8_t>& found) const;
  Result<int> compare(const std::vector<std::uint8_t>& found) const;
  Result<int> compare_codes(const std::vector<std::uint8_t>& found) const;

  GemmProblem problem_;
  Places places_;
  std::size_t m_ = 0, n_ = 0, tokens_ = 0, columns_ = 0;  // columns of A and of B
  int sm_limit_ = 0, launches_ = 1;
  bool has_probes_ = false, has_powers_ = false;
  Operand a_, b_;
  std::size_t d_ = 0, d_elements_ = 0, d_scale_ = 0, d_scales_ = 0, bias_ = 0, sentry_ = 0,
              groups_ = 0;
  std::vector<std::int32_t> group_rows_;  // offsets or counts
  std::vector<std::uint8_t> memory_;
};

}  // namespace octile
