#include "runtime/tuner/operand_times.h"

#include <limits>
#include <optional>
#include <utility>

#include "runtime/families/families.h"
#include "runtime/prove/families.h"
#include "runtime/prove/quantize/operands.h"

namespace octile::tuner {
namespace {

// A tensor of bf16 that a quantiser reads.
struct Source {
  std::int64_t rows = 0, cols = 0;
  QuantizeOutput output = QuantizeOutput::kRowwise;
  Grouping grouping = Grouping::kNone;
};

std::optional<TuningTask> quantizer_of(const TensorType& type, const Source& source) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (source.rows < 1 || source.rows > kMostRows) return std::nullopt;
  QuantizeProblem problem;
  problem.cols = source.cols;
  problem.q = type;
  if (type.scale == ScaleFormat::kF32) problem.q.scale = ScaleFormat::kF32Pow2;
  problem.output = source.output;
  problem.grouping = source.grouping;
  if (!check_supported(Problem(problem)) || !check_operands(problem)) return std::nullopt;
  return TuningTask{problem, source.rows};
}

bool is_timed_with_as_many(const GemmProblem& gemm) {
  QuantizeProblem masked;
  masked.grouping = Grouping::kMasked;
  return gemm.grouping != Grouping::kMasked || gemm.groups == groups_of(masked);
}

}  // namespace

std::vector<OperandQuantizer> operand_quantizers(const TuningTask& task) {
  const auto* gemm = problem_as<GemmProblem>(task.problem);
  if (gemm == nullptr) return {};
  Source a{task.tokens, gemm->k, QuantizeOutput::kRowwise, gemm->grouping};
  Source b{gemm->n, gemm->k};
  if (has_tokens_in_k(*gemm)) {
    a = {task.tokens, gemm->m, QuantizeOutput::kTransposed, gemm->grouping};
    b = {task.tokens, gemm->n, QuantizeOutput::kTransposed, gemm->grouping};
  } else if (is_batched(*gemm)) {
    a.rows *= gemm->batch;
  }
  std::vector<OperandQuantizer> all;
  if (is_timed_with_as_many(*gemm)) {
    if (auto of_a = quantizer_of(gemm->a, a)) all.push_back({"a", std::move(*of_a)});
  }
  if (auto of_b = quantizer_of(gemm->b, b)) all.push_back({"b", std::move(*of_b)});
  return all;
}

const KernelConfig& OperandTimes::config_of(const TuningTask& quantizer,
                                            const KnownRecords& known) {
  const auto [place, is_new] = configs_.try_emplace(to_text(quantizer));
  if (is_new) place->second = known.choose(quantizer, context_.gpu.spec()).config;
  return place->second;
}

void OperandTimes::expect(const TuningTask& task, const KnownRecords& known) {
  for (const OperandQuantizer& quantizer : operand_quantizers(task)) {
    if (us_.contains(to_text(quantizer.task))) continue;
    context_.builds.start(quantizer.task.problem, config_of(quantizer.task, known), Need::kNext);
  }
}

void OperandTimes::learn(const cache::TuningRecord& record) {
  if (record.winner.median_us <= 0) return;
  const auto problem = parse_problem(record.problem);
  if (problem) note(to_text(TuningTask{*problem, record.tokens}), record.winner.median_us);
}

Result<std::vector<OperandTimes::Open>> OperandTimes::open(const TuningTask& task,
                                                           const KnownRecords& known,
                                                           std::vector<WrongCandidate>& wrong) {
  constexpr double kLongestBuild = 60;
  std::vector<Open> all;
  for (const OperandQuantizer& quantizer : operand_quantizers(task)) {
    const auto& [problem, rows] = quantizer.task;
    const std::string key = to_text(quantizer.task);
    if (us_.contains(key)) continue;
    const KernelConfig& config = config_of(quantizer.task, known);
    auto bench = make_bench(context_, problem, rows, {{config, 0}}, seed_);
    if (!bench) {
      if (bench.error().code == ErrorCode::kOutOfMemory) continue;
      return tl::unexpected<Error>(bench.error());
    }
    const std::vector<int> only{0};
    (*bench)->start_builds(only);
    const auto built = (*bench)->build(0, kLongestBuild);
    if (!built || !*built) continue;
    const auto verdict = (*bench)->verify(0);
    if (!verdict) return tl::unexpected<Error>(verdict.error());
    if (!verdict->right) {
      wrong.push_back(
          {octile::to_text(problem), rows, octile::to_text(config), seed_, verdict->why});
      continue;
    }
    all.push_back({key, std::move(*bench)});
  }
  return all;
}

cache::TuningRecord::NamedTimes OperandTimes::of(const TuningTask& task) const {
  cache::TuningRecord::NamedTimes times;
  for (const OperandQuantizer& quantizer : operand_quantizers(task)) {
    const auto known = us_.find(to_text(quantizer.task));
    if (known != us_.end()) times.emplace_back(quantizer.operand, known->second);
  }
  return times;
}

}  // namespace octile::tuner
