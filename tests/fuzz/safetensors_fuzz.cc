// libFuzzer target of the reader of .safetensors headers, and of the weights that are made of one.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tools/models/checkpoint/checkpoint.h"
#include "tools/models/recipes.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto bytes = octile::tools::safetensors_header_bytes(text.substr(0, 8), size, "fuzz");
  if (!bytes) {
    if (!bytes.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  // The data is not there; a file may say of itself that it is large.
  constexpr std::uint64_t kDataBytes = std::uint64_t{1} << 40;
  const auto tensors =
      octile::tools::parse_safetensors_header(text.substr(8, *bytes), kDataBytes, "fuzz");
  if (!tensors) {
    if (!tensors.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  for (const auto& [name, tensor] : *tensors) {
    if (tensor.begin > tensor.end || tensor.end > kDataBytes) std::abort();
  }
  auto model = octile::tools::model_of_checkpoint(*tensors, octile::Json::object(), "fuzz", "fuzz");
  if (!model) return 0;
  if (!assign_recipes(*model, {})) std::abort();
  for (const auto& weight : model->weights) {
    if (weight.layers < 1 || weight.n.value < 0) std::abort();
  }
  if (parameters_of(*model) < 0) std::abort();
  (void)compare_with_checkpoint(*model, *tensors, octile::Json::object());
  return 0;
}
