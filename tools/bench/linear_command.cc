// octile bench linear: the step of a linear layer beside bf16.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>

#include "generator/core/text_fields.h"
#include "tools/bench/linear.h"
#include "tools/command.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

struct LinearOptions {
  std::vector<std::string> shapes;  // MxNxK
  std::string recipe = "blockwise";
  std::string device = "cuda";
  int rounds = 30;
  bool json = false;
};

Result<LinearShape> parse_linear_shape(const std::string& text) {
  std::array<std::int64_t, 3> counts{};
  if (Status ok = parse_shape("the layer", "MxNxK", text, counts); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  const LinearShape shape{counts[0], counts[1], counts[2]};
  if (Status ok = check_linear_shape(shape); !ok) return tl::unexpected<Error>(ok.error());
  return shape;
}

void print_report(const LinearReport& r) {
  fmt::print("linear {}x{}x{}, recipe {}{}\n", r.shape.m, r.shape.n, r.shape.k, r.recipe,
             r.ok() ? "" : ": WRONG");
  TextTable table({"<part", "us", "share"});
  const auto add = [&](const Timing& timing, const std::string& share) {
    table.add_row({timing.name, fmt::format("{:.1f}", timing.median_us), share});
  };
  const auto add_parts = [&](const std::vector<LinearPart>& parts) {
    for (const LinearPart& part : parts)
      add(part.timing, fmt::format("{:.1f} %", 100 * part.share));
  };
  add_parts(r.parts);
  add(r.step, "-");
  add(r.call_by_call, "-");
  add_parts(r.bf16_parts);
  add(r.bf16_step, "-");
  fmt::print("{}  {:.3f}x bf16 as a graph, {:.3f}x of the graph's time call by call\n\n",
             table.render(), r.speedup, r.call_by_call.median_us / r.step.median_us);
}

Status run_linear(const LinearOptions& options) {
  if (options.rounds < 3) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--rounds is {}; allowed are 3 and more", options.rounds));
  }
  const auto recipe = recipe_named(options.recipe);
  if (!recipe) return tl::unexpected<Error>(recipe.error());
  std::vector<LinearShape> shapes;
  for (const std::string& text : options.shapes) {
    const auto shape = parse_linear_shape(text);
    if (!shape) return tl::unexpected<Error>(shape.error());
    if (Status ok = check_linear_supported(**recipe, *shape); !ok) return ok;
    shapes.push_back(*shape);
  }
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto gpu = GpuSession::open(options.device);
  if (!gpu) return tl::unexpected<Error>(gpu.error());
  auto cublaslt = CublasLt::open();
  if (!cublaslt) return tl::unexpected<Error>(cublaslt.error());
  const BenchContext context{*library, **gpu, std::move(*cublaslt), options.rounds};
  Json reports = Json::array();
  bool right = true;
  for (const LinearShape& shape : shapes) {
    const auto report = bench_linear(context, **recipe, shape);
    if (!report) return tl::unexpected<Error>(report.error());
    right = right && report->ok();
    reports.push_back(to_json(*report));
    if (!options.json) print_report(*report);
  }
  if (options.json) {
    print_json({{"device", (*gpu)->device()},
                {"name", (*gpu)->spec().full_name},
                {"driver", (*gpu)->driver()->version_text()},
                {"results", reports}});
  }
  if (right) return {};
  return fail(ErrorCode::kInternal, "bench linear: a GEMM is wrong");
}

}  // namespace

std::function<std::optional<Status>()> add_bench_linear(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "linear",
      "time the step of a linear layer: quantise X, W and dY, then fprop, dgrad and wgrad, beside "
      "the three GEMMs in bf16 by cuBLASLt");
  auto options = std::make_shared<LinearOptions>();
  add_option(*app, "--gemm", options->shapes,
             "layers: tokens x output features x input features, as MxNxK")
      .require();
  add_option(*app, "--recipe", options->recipe, "types and scales: " + recipe_names())
      .show_default();
  add_option(*app, "--device", options->device, "the GPU: cuda or cuda:N").show_default();
  add_option(*app, "--rounds", options->rounds, "interleaved rounds; the median is printed")
      .show_default();
  add_json_option(*app, options->json);
  return [app, options]() -> std::optional<Status> {
    if (!app->parsed()) return std::nullopt;
    return run_linear(*options);
  };
}

}  // namespace octile::tools
