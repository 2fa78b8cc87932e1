// octile bench linear: the step of a linear layer beside bf16.
#include <fmt/format.h>

#include <array>
#include <memory>

#include "generator/core/text_fields.h"
#include "tools/bench/linear.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/output.h"

namespace octile::tools {
namespace {

struct LinearOptions : SessionOptions {
  std::vector<std::string> shapes;  // MxNxK
  std::string recipe = "blockwise";
};

Result<LayerShape> parse_layer_shape(const std::string& text) {
  std::array<std::int64_t, 3> counts{};
  Status ok = parse_shape("the layer", "MxNxK", text, counts);
  if (ok) ok = check_layer_extent("M", counts[0]);
  if (ok) ok = check_layer_extent("N", counts[1]);
  if (ok) ok = check_layer_extent("K", counts[2]);
  if (!ok) return tl::unexpected<Error>(ok.error());
  return LayerShape{counts[0], counts[1], counts[2], 0};
}

Result<std::vector<LayerShape>> read_shapes(const LinearOptions& options, const Recipe& recipe) {
  std::vector<LayerShape> shapes;
  for (const std::string& text : options.shapes) {
    const auto shape = parse_layer_shape(text);
    if (!shape) return tl::unexpected<Error>(shape.error());
    if (Status ok = check_layer_supported(recipe, *shape); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    shapes.push_back(*shape);
  }
  return shapes;
}

Status run_linear(const LinearOptions& options) {
  const auto recipe = recipe_of_option(options.recipe);
  if (!recipe) return tl::unexpected<Error>(recipe.error());
  const auto shapes = read_shapes(options, **recipe);
  if (!shapes) return tl::unexpected<Error>(shapes.error());
  const auto session = BenchSession::open("bench linear", options, true);
  if (!session) return tl::unexpected<Error>(session.error());
  std::vector<Record> all;
  Progress progress(progress_mode(false));
  for (std::size_t i = 0; i < shapes->size(); ++i) {
    progress.count(i, shapes->size(), "layers timed");
    const auto records = bench_linear(session->context(), **recipe, (*shapes)[i]);
    if (!records) return tl::unexpected<Error>(records.error());
    progress.done();
    const Record& step = step_of(*records);
    if (!options.json)
      print_stdout("{}{}\n{}\n", step.what, step.ok ? "" : ": WRONG", step_text(*records));
    if (Status ok = session->keep(*records); !ok) return ok;
    all.insert(all.end(), records->begin(), records->end());
  }
  return session->finish(all, "a GEMM is wrong");
}

}  // namespace

std::function<std::optional<Status>()> add_bench_linear(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "linear",
      "time the step of a linear layer: quantise X, W and dY, then fprop, dgrad and wgrad, beside "
      "the three GEMMs in bf16 by cuBLASLt");
  auto options = std::make_shared<LinearOptions>();
  add_list(*app, "--gemm", options->shapes,
           "layers: tokens x output features x input features, as MxNxK")
      .require();
  add_recipe_option(*app, options->recipe, "types and scales");
  add_timing_options(*app, *options);
  add_json_option(*app, options->json);
  return when_given(app, options, run_linear);
}

}  // namespace octile::tools
