// libFuzzer target of the reader of problem texts and of their short forms. Every problem that is
// read is also looked up in the support matrix, because callers do that next.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "generator/families.h"
#include "generator/gemm/passes.h"

namespace {

// An accepted problem has one canonical text, which means the same.
void check(const octile::Problem& problem) {
  const std::string text = to_text(problem);
  const auto again = octile::parse_problem(text);
  if (!again || *again != problem || to_text(*again) != text) std::abort();
  if (!octile::check_well_formed(problem)) std::abort();
  const octile::Status supported = octile::check_supported(problem);
  if (!supported && supported.error().message.empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto problem = octile::parse_problem(text)) check(*problem);
  if (const auto problem = octile::parse_gemm_shape(text, "blockwise")) check(*problem);
  if (const auto problem = octile::parse_quantize_shape(text, "blockwise")) check(*problem);
  return 0;
}
