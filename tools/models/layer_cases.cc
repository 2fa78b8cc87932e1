#include "tools/models/layer_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/families/families.h"
#include "tools/models/layer_works.h"
#include "tools/models/layout.h"
#include "tools/models/weight_bytes.h"

namespace octile::tools {
namespace {

std::int64_t usual_count(Mode mode) {
  switch (mode) {
    case Mode::kDecode:
      return 64;
    case Mode::kPrefill:
      return 4096;
    case Mode::kTraining:
      break;
  }
  return 8192;
}

std::vector<std::int64_t> counts_of(const ModelUse& use, Mode mode) {
  if (use.counts.empty()) return {usual_count(mode)};
  return counts_in(mode, use.modes, use.counts);
}

bool share_input(const Weight& a, const Weight& b) {
  return !a.input.empty() && a.input == b.input && a.at == b.at && a.k.value == b.k.value &&
         a.groups == b.groups && a.recipe == b.recipe && a.layers == b.layers;
}

// Returns the layer's share of its input's quantiser, by n.
double share_of_input(const Model& model, const Weight& weight) {
  double all = 0;
  for (const Weight& other : model.weights) {
    const bool is_itself = &other == &weight;
    if (is_itself || share_input(weight, other)) all += static_cast<double>(other.n.value);
  }
  return static_cast<double>(weight.n.value) / all;
}

// Returns the source that computes the layer's input before it is quantised; empty if none does.
std::string fused_source(const Weight& weight) {
  if (weight.input.ends_with("activation")) return "silu_mul";
  for (const char* normed : {"hidden", "mlp", "shared", "q_lora", "kv_lora"}) {
    if (weight.input == normed) return "rmsnorm";
  }
  return {};
}

std::optional<QuantizeProblem> fused_with(QuantizeProblem problem, const std::string& source) {
  if (source.empty()) return std::nullopt;
  problem.source = source;
  if (!check_supported(problem)) return std::nullopt;
  return problem;
}

// The cases of one mode at one token count.
class CasesOf {
 public:
  CasesOf(const Model& model, const ModelUse& use, Mode mode, std::int64_t tokens,
          std::int64_t microbatches)
      : model_(model), use_(use), mode_(mode), tokens_(tokens), microbatches_(microbatches) {}

  Result<LayerCase> of(const Weight& weight) const {
    const auto works = works_of(weight);
    if (!works) return tl::unexpected<Error>(works.error());
    LayerCase layer{.layer = weight.role,
                    .recipe = weight.recipe,
                    .mode = mode_,
                    .copies = weight.layers,
                    .n = weight.n.value,
                    .k = weight.k.value,
                    .groups = weight.groups,
                    .tokens = tokens_};
    for (const Work& work : *works) add(work, weight, layer);
    add_bytes(weight, layer);
    return layer;
  }

 private:
  bool trains() const { return mode_ == Mode::kTraining; }

  // The works of this weight alone.
  Result<std::vector<Work>> works_of(const Weight& weight) const {
    Model one{.name = model_.name, .origin = model_.origin, .weights = {weight}};
    ModelUse use = use_;
    use.modes = {mode_};
    use.modes_given = true;
    use.counts = {tokens_};
    use.passes = {};
    use.layout = Layout::kSeparate;  // the model is laid out already
    return works_of_model(one, use);
  }

  void add(const Work& work, const Weight& weight, LayerCase& layer) const {
    const std::int64_t tokens = work.tokens.front().lo;
    if (const auto* gemm = problem_as<GemmProblem>(work.problem)) {
      layer.gemms.push_back({*gemm, tokens});
      return;
    }
    const auto& problem = *problem_as<QuantizeProblem>(work.problem);
    const std::optional<Operand> operand = operand_of(work);
    if (operand == Operand::kWeight && !trains()) return;
    QuantizerUse use{problem, tokens, tokens};
    if (problem.grouping == Grouping::kMasked) use.rows *= weight.groups;
    if (operand == Operand::kWeight) {
      use.rows *= std::max<std::int64_t>(weight.groups, 1);
      use.problem.rows = kDynamic;
      use.problem.grouping = Grouping::kNone;  // the bytes of all experts, as those of one tensor
      use.tokens = use.rows;
      use.share = 1 / static_cast<double>(microbatches_);
    }
    if (operand == Operand::kActivation && (!weight.absorbed || mode_ != Mode::kDecode)) {
      use.share = share_of_input(model_, weight);
      use.fused = fused_with(problem, fused_source(weight));
    }
    layer.quantizers.push_back(std::move(use));
  }

  void add_bytes(const Weight& weight, LayerCase& layer) const {
    const auto matrices = static_cast<double>(std::max<std::int64_t>(weight.groups, 1));
    const double codes = matrices * (elements_of(weight) + scale_bytes_of(weight));
    layer.weight_bytes_bf16 = 2 * matrices * elements_of(weight);
    layer.copy_bytes_fp8 = trains() ? 2 * codes : 0;
    layer.weight_bytes_fp8 = trains() ? layer.weight_bytes_bf16 + layer.copy_bytes_fp8 : codes;
    if (!trains() || layer.quantizers.empty()) return;
    const QuantizerUse& x = layer.quantizers.front();
    const double elements = x.share * static_cast<double>(x.rows) * static_cast<double>(layer.k);
    layer.kept_bytes_bf16 = 2 * elements;
    layer.kept_bytes_fp8 = (1 + 4.0 / 128) * elements;
  }

  const Model& model_;
  const ModelUse& use_;
  const Mode mode_;
  const std::int64_t tokens_, microbatches_;
};

}  // namespace

Result<std::vector<LayerCase>> layer_cases(const Model& rank, const ModelUse& use,
                                           std::int64_t microbatches) {
  std::vector<LayerCase> cases;
  for (const Mode mode : use.modes) {
    const Layout usual = mode == Mode::kTraining ? Layout::kSeparate : Layout::kServing;
    const Model model = laid_out(rank, use.layout.value_or(usual));
    for (const std::int64_t tokens : counts_of(use, mode)) {
      const CasesOf all(model, use, mode, tokens, microbatches);
      for (const Weight& weight : model.weights) {
        if (weight.recipe.empty() || weight.layers == 0) continue;
        auto layer = all.of(weight);
        if (!layer) return tl::unexpected<Error>(layer.error());
        if (!layer->gemms.empty()) cases.push_back(std::move(*layer));
      }
    }
  }
  return cases;
}

}  // namespace octile::tools
