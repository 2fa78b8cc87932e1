// octile shapes: the weights of a model, one a line: what is FP8, what stays out and why.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/models/source.h"
#include "tools/shapes/report.h"

namespace octile::tools {
namespace {

struct Options {
  ModelOptions model;
  std::string recipe = "auto";
  bool wide = false;
  bool json = false;
};

Status list_shipped(const Options& options) {
  std::vector<Model> models;
  for (const std::string& name : shipped_model_names()) {
    auto model = find_model(name);
    if (!model) return tl::unexpected<Error>(model.error());
    models.push_back(std::move(*model));
  }
  if (options.json) {
    print_json(shipped_json(models));
    return {};
  }
  print_table(shipped_table(models), options.wide);
  print_stdout("\n{}\n", wrapped("octile shapes --model NAME prints the weights of one, of a "
                                 "config.json, or of an id of the Hugging Face Hub in the local "
                                 "cache",
                                 line_width(), 2));
  return {};
}

Layout layout_of(const ModelUse& use) {
  if (use.layout) return *use.layout;
  return use.modes == std::vector{Mode::kTraining} ? Layout::kSeparate : Layout::kServing;
}

Result<ModelShapes> shapes_of(const Options& options, const std::string& name) {
  const ModelUse use = options.model.use();
  auto whole = options.model.read_whole(name, options.recipe);
  if (!whole) return tl::unexpected<Error>(whole.error());
  auto rank = shard(*whole, use.parallel);
  if (!rank) return tl::unexpected<Error>(rank.error());
  return ModelShapes{std::move(*whole), laid_out(std::move(*rank), layout_of(use)), use.parallel};
}

void print(const ModelShapes& shapes, bool wide) {
  print_stdout("{}\n\n", wrapped(headline(shapes), line_width(), 2));
  print_table(weights_table(shapes), wide);
  print_stdout("\n");
  print_heading("stays out");
  print_stdout("\n");
  print_table(left_out_table(shapes), wide);
  print_stdout("\n{}\n", wrapped(totals_text(shapes), line_width(), 2));
  for (const std::string& remark : shapes.rank.remarks) {
    print_stdout("{}\n", wrapped("remark: " + remark, line_width(), 2));
  }
}

Status run(const Options& options) {
  const std::string given = options.model.first_given();
  if (options.model.models.empty()) {
    if (given.empty()) return list_shipped(options);
    return refuse(fmt::format("{} without --model; allowed with --model only", given));
  }
  if (Status ok = options.model.check(); !ok) return ok;
  std::vector<ModelShapes> all;
  for (const std::string& name : options.model.models) {
    auto shapes = shapes_of(options, name);
    if (!shapes) return tl::unexpected<Error>(shapes.error());
    all.push_back(std::move(*shapes));
  }
  if (options.json) {
    Json models = Json::array();
    for (const ModelShapes& shapes : all) models.push_back(to_json(shapes));
    print_json({{"models", std::move(models)}});
    return {};
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0) print_stdout("\n");
    print(all[i], options.wide);
  }
  return {};
}

}  // namespace

Command add_shapes(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "shapes",
      "list the weights of a model as GEMMs, and what stays out of FP8; without --model, the "
      "shipped models");
  auto options = std::make_shared<Options>();
  options->model.add_to(*app);
  add_recipe_option(*app, options->recipe,
                    "types and scales of FP8 layers: auto (what the checkpoint's "
                    "quantization_config says, else blockwise)");
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
