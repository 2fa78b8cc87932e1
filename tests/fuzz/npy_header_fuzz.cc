// libFuzzer target of the reader of .npy headers.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tools/inspect/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using octile::tools::kNpyLengthBytes;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bytes = octile::tools::npy_header_bytes(text.substr(0, kNpyLengthBytes), size, "fuzz");
  if (!bytes) {
    if (!bytes.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  if (*bytes > size) std::abort();
  // The data is not there; a file may say of itself that it is large.
  constexpr std::uint64_t kFileBytes = std::uint64_t{1} << 40;
  const auto array = octile::tools::parse_npy_header(text.substr(0, *bytes), kFileBytes, "fuzz");
  if (!array) {
    if (!array.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  const octile::tools::StoredTensor* const tensor = &array->tensor;
  if (array->is_by_columns && tensor->shape.size() != 2) std::abort();
  std::uint64_t elements = tensor->dtype == "F64" ? 8 : tensor->dtype == "F32" ? 4 : 2;
  for (const std::int64_t extent : tensor->shape) {
    if (extent < 0) std::abort();
    elements *= static_cast<std::uint64_t>(extent);
  }
  if (tensor->begin != *bytes || tensor->end - tensor->begin != elements ||
      tensor->end > kFileBytes) {
    std::abort();
  }
  return 0;
}
