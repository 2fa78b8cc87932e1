#include "tools/models/model_options.h"

#include <fmt/format.h>

#include <utility>

#include "tools/models/recipes.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

std::vector<std::string> layout_names() { return {"serving", "separate", "both"}; }

}  // namespace

void ModelOptions::add_to(CLI::App& app) {
  add_list(app, "--model", models,
           "models: a config.json, its folder, an id of the Hugging Face Hub in the local cache, a "
           "shipped name (`octile shapes` lists them), or a list of shapes")
      .complete_with(shipped_model_names);
  add_list(app, "--mode", modes,
           "with --model: decode (1 to 256 tokens, experts masked), prefill (512 to 16384), "
           "training (2048 to 16384, three passes), serving (the first two, the default)")
      .complete_with(mode_names);
  add_option(app, "--layout", layout,
             "with --model: serving (projections fused as vLLM and SGLang fuse them), separate (as "
             "transformers runs them, the default of training), both")
      .complete_with(layout_names);
  add_option(app, "--tp", tp, "with --model: ranks of tensor parallelism; default 1");
  add_option(app, "--ep", ep,
             "with --model: ranks of expert parallelism; default 1. --tokens are a rank's tokens: "
             "its experts receive a row for each expert of each token");
  add_option(app, "--moe-tp", moe_tp,
             "with --model: ranks that share each expert; default tp / ep");
  add_flag(app, "--dp-attention", dp_attention,
           "with --model: every rank has tokens of its own, attention and shared experts whole");
  add_option(app, "--preset", preset,
             "with --model, of a checkpoint in BF16: which layers are FP8: deepseek-v3 (the "
             "default: all but router and output layer), torchao (its filter of small layers), all")
      .complete_with(preset_names);
  add_list(app, "--convert", convert,
           "with --model: modules that are FP8 nevertheless: names of `octile shapes`, with *");
  add_list(app, "--keep", keep, "with --model: modules that stay out: names, with *");
}

std::string ModelOptions::first_given() const {
  for (const auto& [name, value] : {std::pair("--mode", modes.empty() ? "" : modes.front()),
                                    std::pair("--layout", layout), std::pair("--preset", preset),
                                    std::pair("--convert", convert.empty() ? "" : convert.front()),
                                    std::pair("--keep", keep.empty() ? "" : keep.front())}) {
    if (!value.empty()) return fmt::format("{} is {}", name, value);
  }
  for (const auto& [name, value] :
       {std::pair("--tp", tp), std::pair("--ep", ep), std::pair("--moe-tp", moe_tp)}) {
    if (value) return fmt::format("{} is {}", name, *value);
  }
  return dp_attention ? "--dp-attention is given" : "";
}

Status ModelOptions::check() const {
  if (const auto read = modes_of_option(modes); !read) return tl::unexpected<Error>(read.error());
  if (layout.empty()) return {};
  return layout_of_option(layout).map([](Layout) {});
}

Parallel ModelOptions::parallel() const {
  return {tp.value_or(1), ep.value_or(1), moe_tp, dp_attention};
}

Result<Model> ModelOptions::read_whole(const std::string& model, const std::string& recipe) const {
  auto found = find_model(model);
  if (!found) return found;
  if (Status ok = assign_recipes(*found, {recipe, preset, convert, keep}); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return found;
}

Result<Model> ModelOptions::read(const std::string& model, const std::string& recipe) const {
  return read_whole(model, recipe).and_then([this](Model whole) {
    return shard(std::move(whole), parallel());
  });
}

ModelUse ModelOptions::use() const {
  ModelUse use;
  use.modes = modes_of_option(modes).value();
  use.modes_given = !modes.empty();
  if (!layout.empty()) use.layout = layout_of_option(layout).value();
  use.parallel = parallel();
  use.experts_of_lists = ep.has_value();
  return use;
}

}  // namespace octile::tools
