// octile demo: the main job on realistic input, with a GPU or without one.
//
//   activations with outliers -> their loss in FP8 -> kernels -> forward pass -> checks
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "runtime/api/boundary.h"
#include "runtime/engine/target.h"
#include "tools/command.h"
#include "tools/common/forward.h"
#include "tools/common/output.h"
#include "tools/common/terminal.h"
#include "tools/common/text_table.h"
#include "tools/compile/kernel_report.h"
#include "tools/demo/accuracy.h"
#include "tools/doctor/surroundings.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

constexpr const char* kModel = "deepseek-v3";
constexpr const char* kRecipe = "blockwise:f32";
constexpr std::array kOutliers{220.0F, 2e5F};
constexpr std::array kRoles{"quantise X", "quantise W", "GEMM"};  // of the layer's problems

struct Options {
  std::string device;
  bool quick = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
};

struct Shape {
  std::string layer;
  std::int64_t m = 0, n = 0, k = 0;
};

struct Where {
  std::string compile_for;  // the device that kernels are compiled for: "cuda:0", "h200"
  bool on_gpu = false;      // the GEMM runs there, and not on the host
};

// Returns the layer of the demo, or a part of it if `quick`.
Result<Shape> shape_of(const Model& model, bool quick) {
  const auto found = std::ranges::find_if(
      model.weights, [](const Weight& w) { return w.n.value == 4096 && w.k.value == 7168; });
  if (found == model.weights.end()) {
    return fail(ErrorCode::kInternal, "the model has no layer of 4096 x 7168");
  }
  return Shape{found->role, quick ? 256 : 1024, quick ? 512 : found->n.value, found->k.value};
}

// Returns --device if it is given, else the first GPU, else h200 and the host.
Where where_to_run(const std::string& device, const FoundDevice* live) {
  if (device.starts_with("cuda")) return {device, true};
  if (device.empty() && live != nullptr) return {fmt::format("cuda:{}", live->ordinal), true};
  const bool named = !device.empty() && device != "host";
  return {named ? device : "h200", false};
}

class Demo {
 public:
  Demo(const Options& options, const LibraryHandle& library)
      : options_(options),
        library_(library),
        progress_(progress_mode(options.progress)),
        began_([this](const std::string& what) { progress_.step(what); }) {}

  Status run() {
    Status ok = prepare();
    if (ok) ok = study_accuracy();
    if (ok) ok = compile();
    if (ok) ok = forward();
    progress_.done();
    if (ok && options_.json) print_json(document_);
    if (ok && !passed_) {
      return fail(ErrorCode::kInternal, "demo: the result of the GEMM is wrong, see above");
    }
    if (ok && lacking_) {
      return fail(lacking_->code, "demo: not all kernels could be had, and the rest is right: " +
                                      lacking_->message);
    }
    return ok;
  }

 private:
  void say(const std::string& text) {
    progress_.done();
    if (options_.json) return;
    print_stdout("{}", text);
    (void)std::fflush(stdout);
  }

  void say(const TextTable& table) {
    progress_.done();
    if (options_.json) return;
    print_table(table, options_.wide);
    (void)std::fflush(stdout);
  }

  // Chooses shape and device, and names the parts that this machine lacks.
  Status prepare() {
    if (!options_.device.empty()) {
      if (Status ok = check_device_name(options_.device, true); !ok) return ok;
      const auto target = resolve_target(options_.device);
      if (!target) return tl::unexpected<Error>(target.error());
    }
    const auto model = find_model(kModel);
    if (!model) return tl::unexpected<Error>(model.error());
    auto shape = shape_of(*model, options_.quick);
    if (!shape) return tl::unexpected<Error>(shape.error());
    shape_ = std::move(*shape);
    began_("looking at this machine");
    surroundings_ = look_around(library_);
    where_ = where_to_run(options_.device, surroundings_.first_usable());
    introduce(model->name);
    return {};
  }

  void introduce(const std::string& model) {
    document_ = {
        {"model", model},
        {"layer", {{"name", shape_.layer}, {"m", shape_.m}, {"n", shape_.n}, {"k", shape_.k}}},
        {"recipe", kRecipe},
        {"device", where_.compile_for},
        {"executor", where_.on_gpu ? where_.compile_for : "host"},
        {"machine", to_json(surroundings_)}};
    const std::string what = fmt::format(
        "Octile: {} of {}, {} tokens: Y[{},{}] = X[{},{}] W[{},{}]^T in FP8 ({})", shape_.layer,
        model, shape_.m, shape_.m, shape_.n, shape_.m, shape_.k, shape_.n, shape_.k, kRecipe);
    say(wrapped(what, line_width(), 2) + "\n");
    if (!surroundings_.missing.empty()) say("\n" + missing_text(surroundings_));
  }

  reference::ActivationSpec activations(float outlier) const {
    reference::ActivationSpec spec;
    spec.rows = shape_.m;
    spec.cols = shape_.k;
    spec.outlier_row = std::min(spec.outlier_row, spec.rows / 2);
    spec.outlier = outlier;
    return spec;
  }

  Status study_accuracy() {
    describe_activations(activations(kOutliers.front()));
    Json studies = Json::array();
    for (const float outlier : kOutliers) {
      const auto study = study_outlier(activations(outlier), began_);
      if (!study) return tl::unexpected<Error>(study.error());
      studies.push_back(to_json(*study));
      say(fmt::format("\n  outlier {:g}\n", outlier));
      say(to_table(*study));
    }
    document_.set("quantisation", studies);
    say("\n" +
        wrapped("  E4M3 is floating point, so one scale per tensor loses little until the outlier "
                "pushes the bulk into its subnormals. Integers have no exponent and show a loss "
                "that FP8 does not have.",
                line_width(), 2) +
        "\n");
    return {};
  }

  void describe_activations(const reference::ActivationSpec& spec) {
    document_.set("activations",
                  {{"rows", spec.rows},
                   {"cols", spec.cols},
                   {"channels_scaled", Json::array({{{"channel", spec.channel_30}, {"by", 30}},
                                                    {{"channel", spec.channel_50}, {"by", 50}}})},
                   {"outlier_cell", Json::array({spec.outlier_row, spec.outlier_col})}});
    const std::string drawn = fmt::format(
        "1. Activations {} x {}: N(0,1), channel {} times 30, channel {} times 50, one cell an "
        "outlier",
        spec.rows, spec.cols, spec.channel_30, spec.channel_50);
    say("\n" + wrapped(drawn, line_width(), 3) + "\n\n" +
        wrapped("2. Quantised to E4M3, and to the integers from -448 to 448 that tutorials take "
                "for FP8",
                line_width(), 3) +
        "\n");
  }

  // Returns the problems that the layer's forward pass is made of.
  Result<std::vector<Work>> kernel_problems() const {
    const auto layer = forward_layer(library_, where_.compile_for, kRecipe, shape_.n, shape_.k);
    if (!layer) return tl::unexpected<Error>(layer.error());
    const auto texts = layer->problems(kForwardUses);
    if (!texts) return tl::unexpected<Error>(texts.error());
    std::vector<Work> works;
    for (const std::string& text : *texts) {
      const auto problem = parse_problem(text);
      if (!problem) return tl::unexpected<Error>(problem.error());
      const std::int64_t rows = works.size() == OCTILE_LAYER_W ? shape_.n : shape_.m;
      works.push_back({kRoles.at(works.size()), *problem, {{rows, rows}}});
    }
    return works;
  }

  Result<Json> compile_one(const Work& work) {
    const auto plan = PlanHandle::create(library_, where_.compile_for, work.problem);
    if (!plan) return tl::unexpected<Error>(plan.error());
    began_("compiling: " + work.name);
    if (Status ok = plan->prepare(work.tokens.front().lo, work.tokens.front().hi); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    auto description = plan->describe();
    if (!description) return description;
    Json kernel{{"role", work.name}, {"problem", description->at("problem")}};
    for (const auto& [name, value] : description->at("kernels").at(0).items())
      kernel.add(name, value);
    return kernel;
  }

  // If a kernel cannot be had, because there is no compiler and no cache holds it, this step says
  // so, the demo continues on the host, and its exit status tells.
  Status compile() {
    const auto works = kernel_problems();
    if (!works) return tl::unexpected<Error>(works.error());
    Json kernels = Json::array();
    for (const Work& work : *works) {
      const auto kernel = compile_one(work);
      if (kernel) {
        kernels.push_back(*kernel);
      } else if (kernel.error().code == ErrorCode::kNoCompiler ||
                 kernel.error().code == ErrorCode::kOffline) {
        lacking_ = kernel.error();
      } else {
        return tl::unexpected<Error>(kernel.error());
      }
    }
    document_.set("kernels", kernels);
    document_.set("kernels_complete", !lacking_);
    say(fmt::format("\n3. Kernels for {}, cache in {}\n", where_.compile_for,
                    surroundings_.cache_root.empty() ? "none" : surroundings_.cache_root));
    if (!kernels.empty()) {
      say(kernel_table(kernels));
      say(configuration_lines(kernels));
    }
    if (lacking_) say(wrapped("  not all of them: " + lacking_->message, line_width(), 4) + "\n");
    return {};
  }

  Status forward() {
    const bool on_gpu = where_.on_gpu && !lacking_;
    began_("drawing the weight");
    const Layer layer = make_layer(*find_recipe(kRecipe),
                                   reference::synthetic_activations(activations(kOutliers.front())),
                                   shape_.m, shape_.n, shape_.k);
    const auto report = on_gpu ? run_on_gpu(layer) : forward_on_host(library_, layer, began_);
    if (!report) return tl::unexpected<Error>(report.error());
    document_.set("executor", report->executor);
    document_.set("run", to_json(*report));
    passed_ = report->ok();
    say(fmt::format(
        "\n4. Run on {}\n{}",
        on_gpu ? where_.compile_for : "the host: the reference executor stands in for a launch",
        to_text(*report)));
    return {};
  }

  Result<ForwardReport> run_on_gpu(const Layer& layer) {
    const auto gpu = GpuSession::open(library_.get()->library, where_.compile_for);
    if (!gpu) return tl::unexpected<Error>(gpu.error());
    return forward_on_gpu(library_, **gpu, layer, began_);
  }

  const Options& options_;
  const LibraryHandle& library_;
  Progress progress_;
  Began began_;
  Shape shape_;
  Where where_;
  Surroundings surroundings_;
  std::optional<Error> lacking_;  // why a kernel could not be had
  bool passed_ = false;
  Json document_;
};

Status run(const Options& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  return Demo(options, *library).run();
}

}  // namespace

Command add_demo(CLI::App& root) {
  CLI::App* app = add_subcommand(
      root, "demo",
      "run the main job on realistic input: quantise, generate, compile, cache, run, verify");
  auto options = std::make_shared<Options>();
  add_option(*app, "--device", options->device,
             "where to run: cuda, cuda:N, host, or a device to compile for (" +
                 supported_device_names() + "); default the first GPU, else h200 and the host");
  add_flag(*app, "--quick", options->quick,
           "256 tokens and 512 outputs instead of the whole layer");
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return {app, [options] { return run(*options); }};
}

}  // namespace octile::tools
