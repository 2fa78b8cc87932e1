// octile shapes: the weights of a model, one a line: what is FP8, what stays out and why.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/models/source.h"
#include "tools/shapes/estimate.h"
#include "tools/shapes/report.h"

namespace octile::tools {
namespace {

struct Options {
  ModelOptions model;
  EstimateOptions estimate;
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

// A model's weights, and what is estimated of them.
struct ModelAnswer {
  ModelShapes shapes;
  std::optional<Verdicts> estimate = std::nullopt;
};

Result<std::vector<ModelAnswer>> answer_all(const Options& options,
                                            const std::optional<DeviceSpec>& device) {
  std::optional<LibraryHandle> library;
  if (device) {
    auto created = LibraryHandle::create();
    if (!created) return tl::unexpected<Error>(created.error());
    library = std::move(*created);
  }
  std::vector<ModelAnswer> all;
  for (const std::string& name : options.model.models) {
    auto shapes = shapes_of(options, name);
    if (!shapes) return tl::unexpected<Error>(shapes.error());
    all.push_back({std::move(*shapes)});
    if (!device) continue;
    const auto rank = shard(all.back().shapes.whole, options.model.parallel());
    if (!rank) return tl::unexpected<Error>(rank.error());
    auto estimate = estimate_model(*rank, options.model.use(), *device, options.estimate, *library);
    if (!estimate) return tl::unexpected<Error>(estimate.error());
    all.back().estimate = std::move(*estimate);
  }
  return all;
}

void print(const ModelAnswer& answer, const std::optional<DeviceSpec>& device,
           const Options& options) {
  if (!answer.estimate || !device) return print(answer.shapes, options.wide);
  print_stdout("{}\n", wrapped(headline(answer.shapes), line_width(), 2));
  print_stdout("\n");
  print_heading("does FP8 pay, " + sources_text(answer.estimate->layers, device->name));
  print_stdout("\n");
  print_verdicts(*answer.estimate, options.estimate.verdict.step(), options.wide);
}

Json document_of(const ModelAnswer& answer, const std::optional<DeviceSpec>& device,
                 const Options& options) {
  Json model = to_json(answer.shapes);
  if (!answer.estimate || !device) return model;
  model.set("device", device->name);
  constexpr double kGb = std::int64_t{1} << 30;
  if (device->dram_gb > 0) {
    model.set("device_memory_bytes", static_cast<std::int64_t>(device->dram_gb * kGb));
  }
  model.set("estimate", to_json(*answer.estimate, options.estimate.verdict.step()));
  return model;
}

Status check(const Options& options) {
  const std::string given = options.model.first_given();
  if (options.model.models.empty()) {
    if (!given.empty()) {
      return refuse(fmt::format("{} without --model; allowed with --model only", given));
    }
    if (options.estimate.estimate) {
      return refuse("--estimate without --model; allowed with --model only");
    }
  }
  if (Status ok = options.estimate.check(); !ok) return ok;
  return options.model.check();
}

Status run(const Options& options) {
  if (Status ok = check(options); !ok) return ok;
  if (options.model.models.empty()) return list_shipped(options);
  std::optional<DeviceSpec> device;
  if (options.estimate.estimate) {
    auto found = device_to_estimate(options.estimate.device);
    if (!found) return tl::unexpected<Error>(found.error());
    device = std::move(*found);
  }
  const auto all = answer_all(options, device);
  if (!all) return tl::unexpected<Error>(all.error());
  if (options.json) {
    Json models = Json::array();
    for (const ModelAnswer& answer : *all) models.push_back(document_of(answer, device, options));
    print_json({{"models", std::move(models)}});
    return {};
  }
  for (std::size_t i = 0; i < all->size(); ++i) {
    if (i > 0) print_stdout("\n");
    print((*all)[i], device, options);
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
  options->estimate.add_to(*app);
  add_recipe_option(*app, options->recipe,
                    "types and scales of FP8 layers: auto (what the checkpoint's "
                    "quantization_config says, else blockwise)");
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
