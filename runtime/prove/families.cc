#include "runtime/prove/families.h"

#include <utility>
#include <variant>

#include "runtime/prove/gemm/bench.h"
#include "runtime/prove/quantize/bench.h"

namespace octile {

Status check_operands(const Problem& problem) {
  return std::visit([](const auto& p) { return check_operands(p); }, problem);
}

std::int64_t bytes_moved(const Problem& problem, std::int64_t tokens) {
  return std::visit([&](const auto& p) { return bytes_moved(p, tokens); }, problem);
}

namespace tuner {

Result<std::unique_ptr<GpuBench>> make_bench(TunerContext& context, const Problem& problem,
                                             std::int64_t tokens, std::vector<Ranked> candidates,
                                             std::uint64_t seed) {
  return std::visit(
      [&]<typename P>(const P& p) -> Result<std::unique_ptr<GpuBench>> {
        return KernelBench<P>::create(context, p, tokens, std::move(candidates), seed);
      },
      problem);
}

}  // namespace tuner
}  // namespace octile
