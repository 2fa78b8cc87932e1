// libFuzzer target of the reader of model-shape files.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tools/models/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = octile::tools::parse_model_file(text, "fuzz");
  if (!file) {
    if (!file.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  // Callers rely on this without checking.
  if (file->gemms.empty() || file->tokens.empty()) std::abort();
  for (const auto& gemm : file->gemms) {
    if (gemm.name.empty() || gemm.n < 1 || gemm.k < 1) std::abort();
  }
  std::int64_t last = 0;
  for (const std::int64_t count : file->tokens) {
    if (count <= last) std::abort();
    last = count;
  }
  return 0;
}
