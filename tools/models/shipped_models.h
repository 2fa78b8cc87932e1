// The model files of tools/models, embedded at build time: the command needs no file beside it.
#pragma once

#include <span>
#include <string_view>

namespace octile::tools {

struct ShippedModel {
  std::string_view name;  // of the file, without .json: "deepseek-v3"
  std::string_view json;
};
std::span<const ShippedModel> shipped_models();

}  // namespace octile::tools
