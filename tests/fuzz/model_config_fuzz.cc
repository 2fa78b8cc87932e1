// libFuzzer target of the readers of config.json and of the output of `octile shapes`. The models
// are also divided among ranks and laid out, because callers do that next.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tools/models/config/derive.h"
#include "tools/models/document.h"
#include "tools/models/layout.h"
#include "tools/models/parallel.h"
#include "tools/models/recipes.h"
#include "tools/models/shapes_document.h"

namespace {

using octile::tools::Model;

// Callers rely on this without checking.
void check(const Model& model) {
  constexpr std::int64_t kMost = 0x7fffffff;
  if (parameters_of(model) < 0 || mtp_parameters_of(model) < 0) std::abort();
  for (const auto& weight : model.weights) {
    if (weight.role.empty() || weight.layers < 0 || weight.n.value < 1) std::abort();
    if (weight.is_vector()) continue;
    if (weight.n.value > kMost || weight.k.value > kMost) std::abort();
    if (weight.recipe.empty() && weight.out.empty()) std::abort();
    if (weight.groups > 0 && weight.per_token > weight.groups) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto document = octile::tools::parse_document(text, "fuzz");
  if (!document) {
    if (!document.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  const bool is_shapes = octile::tools::is_shapes_document(*document);
  if (!is_shapes && !octile::tools::is_config(*document)) return 0;
  auto model = is_shapes ? octile::tools::model_of_shapes_document(*document, "fuzz")
                         : octile::tools::model_of_config(*document, "fuzz", "fuzz");
  if (!model) {
    if (!model.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  if (!assign_recipes(*model, {})) std::abort();
  check(*model);
  if (const auto rank = shard(*model, {.tp = 2, .ep = 2})) {
    if (parameters_of(*rank) > parameters_of(*model)) std::abort();
    (void)laid_out(*rank, octile::tools::Layout::kBoth);
  }
  return 0;
}
