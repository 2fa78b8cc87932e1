// The configs of tools/models/configs, embedded at build time, so that the command needs no files.
#pragma once

#include <span>
#include <string_view>

namespace octile::tools {

struct ShippedModel {
  std::string_view name;  // the file's name without .json: "deepseek-v3"
  std::string_view json;
};
std::span<const ShippedModel> shipped_models();

}  // namespace octile::tools
