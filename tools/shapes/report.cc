#include "tools/shapes/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "generator/core/recipe.h"
#include "tools/models/source.h"
#include "tools/models/weight_bytes.h"

namespace octile::tools {
namespace {

// Copies of a weight that one token meets on a rank: layers without multi-token prediction, times
// the experts that it goes to.
double uses_per_token(const Weight& weight, const Parallel& parallel) {
  const auto layers = static_cast<double>(weight.layers);
  if (weight.groups == 0) return layers;
  return layers * static_cast<double>(weight.per_token * parallel.token_owners()) /
         static_cast<double>(parallel.ep);
}

std::string layers_text(const Weight& weight) {
  if (weight.mtp == 0) return std::to_string(weight.layers);
  return fmt::format("{}+{}", weight.layers, weight.mtp);
}

std::string count_text(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} B", count * 1e-9);
  if (count >= 1e6) return fmt::format("{:.2f} M", count * 1e-6);
  return fmt::format("{:.0f}", count);
}

std::string recipes_text(const Model& model) {
  std::vector<std::string> names;
  for (const Weight& weight : model.weights) {
    if (weight.recipe.empty() || std::ranges::count(names, weight.recipe) > 0) continue;
    names.push_back(weight.recipe);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

// Parameters of the weights that FP8 kernels multiply by.
std::int64_t converted_parameters(const Model& model) {
  std::int64_t sum = 0;
  for (const Weight& weight : model.weights) {
    if (!weight.recipe.empty()) sum += weight.layers * weight.parameters();
  }
  return sum;
}

Json json_of(const Weight& weight, const Parallel& parallel) {
  Json object{{"role", weight.role}, {"layers", weight.layers}, {"mtp", weight.mtp}};
  object.set("n", weight.n.value);
  if (!weight.is_vector()) object.set("k", weight.k.value);
  object.set("bias", weight.bias);
  object.set("parameters", weight.parameters());
  if (weight.groups > 0) {
    object.set("groups", weight.groups);
    object.set("per_token", weight.per_token);
  }
  if (!weight.out.empty()) {
    object.set("why", weight.out);
    return object;
  }
  object.set("split", name_of(weight.cut));
  const bool has_heads = weight.is_attention && (weight.cut == Cut::kN || weight.cut == Cut::kK);
  if (has_heads && weight.kv_n < weight.n.value) object.set("heads", weight.units.value);
  if (weight.kv_n > 0) {
    object.set("kv_heads", weight.kv_heads.value);
    object.set("kv_n", weight.kv_n);
  }
  object.set("recipe", weight.recipe);
  object.set("operations_per_token", operations_per_token(weight, parallel));
  object.set("bytes_per_token", bytes_per_token(weight, parallel));
  return object;
}

std::int64_t experts_of(const Model& model) {
  for (const Weight& weight : model.weights) {
    if (weight.groups > 0) return weight.groups;
  }
  return 0;
}

}  // namespace

double operations_per_token(const Weight& weight, const Parallel& parallel) {
  return 2 * elements_of(weight) * uses_per_token(weight, parallel);
}

double bytes_per_token(const Weight& weight, const Parallel& parallel) {
  return (elements_of(weight) + scale_bytes_of(weight)) * uses_per_token(weight, parallel);
}

std::string headline(const ModelShapes& shapes) {
  const Parallel& p = shapes.parallel;
  std::string text = shapes.whole.name;
  if (!shapes.whole.model_type.empty()) {
    text += fmt::format(": {}, {} layers", shapes.whole.model_type, shapes.whole.layers);
  }
  text += ", recipe " + recipes_text(shapes.whole);
  if (p.tp > 1 || p.ep > 1 || p.expert_tp() > 1) {
    text += fmt::format("; one rank of tp {}, ep {}, moe-tp {}{}", p.tp, p.ep, p.expert_tp(),
                        p.dp_attention ? ", attention data-parallel" : "");
  }
  return text;
}

TextTable weights_table(const ModelShapes& shapes) {
  TextTable table({"<weight", "layers", "n", "k", "bias", "groups", "<split", "<recipe",
                   "MFLOP/token", "MB/token"});
  table.cut("weight", 16).leave_out({"MB/token", "MFLOP/token", "bias", "split", "recipe"});
  for (const Weight& weight : shapes.rank.weights) {
    if (!weight.out.empty()) continue;
    table.add_row({weight.role, layers_text(weight), std::to_string(weight.n.value),
                   std::to_string(weight.k.value), weight.bias ? "yes" : "-",
                   weight.groups == 0 ? "-" : std::to_string(weight.groups), name_of(weight.cut),
                   weight.recipe,
                   fmt::format("{:.1f}", operations_per_token(weight, shapes.parallel) * 1e-6),
                   fmt::format("{:.2f}", bytes_per_token(weight, shapes.parallel) * 1e-6)});
  }
  return table;
}

TextTable left_out_table(const ModelShapes& shapes) {
  TextTable table({"<tensor", "layers", "n", "k", "parameters", "<why"});
  table.cut("tensor", 16).cut("why", 16);
  for (const Weight& weight : shapes.rank.weights) {
    if (weight.out.empty()) continue;
    table.add_row({weight.role, layers_text(weight), std::to_string(weight.n.value),
                   weight.is_vector() ? "-" : std::to_string(weight.k.value),
                   count_text(static_cast<double>(weight.parameters()) *
                              static_cast<double>(weight.layers + weight.mtp)),
                   weight.out});
  }
  return table;
}

std::string totals_text(const ModelShapes& shapes) {
  const auto all = static_cast<double>(parameters_of(shapes.whole));
  const auto fp8 = static_cast<double>(converted_parameters(shapes.whole));
  const auto mtp = static_cast<double>(mtp_parameters_of(shapes.whole));
  std::string text = fmt::format("parameters in all {} ({:.0f}), in FP8 layers {} ({:.1f} %)",
                                 count_text(all), all, count_text(fp8), 100 * fp8 / all);
  if (mtp > 0) text += fmt::format("; multi-token prediction {} more", count_text(mtp));
  double operations = 0, bytes = 0;
  for (const Weight& weight : shapes.rank.weights) {
    if (weight.recipe.empty()) continue;
    operations += operations_per_token(weight, shapes.parallel);
    bytes += bytes_per_token(weight, shapes.parallel);
  }
  return text + fmt::format("; a token takes {:.1f} GFLOP and {:.2f} GB of weights in FP8",
                            operations * 1e-9, bytes * 1e-9);
}

Json to_json(const ModelShapes& shapes) {
  Json weights = Json::array(), left_out = Json::array();
  for (const Weight& weight : shapes.rank.weights) {
    (weight.out.empty() ? weights : left_out).push_back(json_of(weight, shapes.parallel));
  }
  const Parallel& p = shapes.parallel;
  return {
      {"model", shapes.whole.name},
      {"model_type", shapes.whole.model_type},
      {"layers", shapes.whole.layers},
      {"parallel",
       {{"tp", p.tp}, {"ep", p.ep}, {"moe_tp", p.expert_tp()}, {"dp_attention", p.dp_attention}}},
      {"weights", std::move(weights)},
      {"left_out", std::move(left_out)},
      {"parameters", parameters_of(shapes.whole)},
      {"mtp_parameters", mtp_parameters_of(shapes.whole)},
      {"remarks", shapes.rank.remarks}};
}

TextTable shipped_table(const std::vector<Model>& models) {
  TextTable table({"<model", "<type", "layers", "experts", "parameters", "<checkpoint", "<Hub"});
  table.leave_out({"Hub", "checkpoint"});
  for (const Model& model : models) {
    const std::int64_t experts = experts_of(model);
    table.add_row({model.name, model.model_type, std::to_string(model.layers),
                   experts == 0 ? "-" : std::to_string(experts),
                   count_text(static_cast<double>(parameters_of(model))),
                   model.quantization ? model.quantization->method : "bf16",
                   hub_ids_of(model.name).front()});
  }
  return table;
}

Json shipped_json(const std::vector<Model>& models) {
  Json shipped = Json::array();
  for (const Model& model : models) {
    shipped.push_back({{"model", model.name},
                       {"model_type", model.model_type},
                       {"layers", model.layers},
                       {"experts", experts_of(model)},
                       {"parameters", parameters_of(model)},
                       {"checkpoint", model.quantization ? model.quantization->method : "bf16"},
                       {"hub_ids", hub_ids_of(model.name)}});
  }
  return {{"shipped", std::move(shipped)}};
}

}  // namespace octile::tools
