#include "tools/bench/verdict_command.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/bench/compile_first.h"
#include "tools/bench/layer_times.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/input_file.h"
#include "tools/common/output.h"
#include "tools/common/records.h"
#include "tools/common/terminal.h"
#include "tools/models/estimated_times.h"
#include "tools/models/layer_records.h"
#include "tools/verdict/options.h"
#include "tools/verdict/report.h"

namespace octile::tools {
namespace {

struct BenchOptions : SessionOptions {
  ModelOptions model;
  VerdictOptions verdict;
  std::string recipe = "auto";
  std::string judge;
  bool wide = false;
  bool progress = false;
};

struct MeasuredModel {
  std::string name;
  Verdicts verdicts;
  std::vector<std::string> remarks;
  bool ok = true;
};

struct ModelCases {
  std::string name;
  std::vector<LayerCase> layers;
};

Result<std::vector<ModelCases>> read_models(const BenchOptions& options) {
  ModelUse use = options.model.use();
  use.counts = options.verdict.tokens;
  std::vector<ModelCases> all;
  for (const std::string& name : options.model.models) {
    const auto rank = options.model.read(name, options.recipe);
    if (!rank) return tl::unexpected<Error>(rank.error());
    auto cases = layer_cases(*rank, use, options.verdict.microbatches.value_or(1));
    if (!cases) return tl::unexpected<Error>(cases.error());
    all.push_back({rank->name, std::move(*cases)});
  }
  return all;
}

std::vector<Work> works_of(const LayerCase& layer) {
  std::vector<Work> works;
  for (const GemmUse& use : layer.gemms) {
    works.push_back({layer.layer, use.problem, {{use.tokens, use.tokens}}});
  }
  for (const QuantizerUse& use : layer.quantizers) {
    works.push_back({layer.layer, use.problem, {{use.tokens, use.tokens}}});
  }
  return works;
}

// Returns the record of a layer: FP8 with its share of quantising, and BF16 beside it.
Record record_of(const BenchContext& context, const ModelCases& model, const JudgedLayer& judged,
                 const MeasuredCase& measured) {
  Record record = new_record(context.tool, context.gpu);
  record.protocol = replay_protocol(context.rounds, true);
  set_layer(model.name, judged, record);
  record.peers.front().version = version_text(*context.cublaslt);
  if (const Loop& loop = measured.loop; loop.us > 0) {
    Measured us;
    us.median = loop.us;
    record.peers.push_back({loop.name, version_text(*context.cublaslt), us, std::nullopt});
  }
  record.ok = measured.ok;
  record.check = measured.check;
  return record;
}

class VerdictBench {
 public:
  VerdictBench(const BenchOptions& options, const BenchContext& context)
      : options_(options), context_(context), progress_(progress_mode(options.progress)) {}

  Result<MeasuredModel> run(const ModelCases& model) {
    MeasuredModel measured;
    measured.name = model.name;
    for (const LayerCase& layer : model.layers) {
      progress_.count(measured.verdicts.layers.size(), model.layers.size(),
                      fmt::format("timed, now {} at {} tokens", layer.layer, layer.tokens));
      if (Status ok = add(model, layer, measured); !ok) return tl::unexpected<Error>(ok.error());
    }
    progress_.done();
    measured.verdicts.sums = sum_up(measured.verdicts.layers, context_.gpu.spec());
    return measured;
  }

 private:
  Status add(const ModelCases& model, const LayerCase& layer, MeasuredModel& to) {
    Library& internals = context_.library.get()->library;
    const CaseTimes estimated =
        estimated_times(layer, context_.gpu.spec(), *internals.engine.records());
    compile_first(context_, works_of(layer));
    const auto measured = measure_case(context_, layer, estimated);
    if (!measured && measured.error().code == ErrorCode::kOutOfMemory) {
      to.remarks.push_back(fmt::format("{} of {} tokens is estimated: {}", layer.layer,
                                       layer.tokens, measured.error().message));
      to.verdicts.layers.push_back(judge(layer, estimated));
      return {};
    }
    if (!measured) return tl::unexpected<Error>(measured.error());
    for (const std::string& remark : measured->remarks) {
      to.remarks.push_back(fmt::format("{} of {} tokens: {}", layer.layer, layer.tokens, remark));
    }
    to.ok = to.ok && measured->ok;
    to.verdicts.layers.push_back(judge(layer, measured->times));
    return keep_records(options_.records,
                        {record_of(context_, model, to.verdicts.layers.back(), *measured)});
  }

  const BenchOptions& options_;
  const BenchContext& context_;
  Progress progress_;
};

void print(const MeasuredModel& model, const GpuSession& gpu, const BenchOptions& options) {
  const std::string device = fmt::format("{} ({})", gpu.device(), gpu.spec().full_name);
  print_heading(fmt::format("does FP8 pay in {}, {}{}", model.name,
                            sources_text(model.verdicts.layers, device),
                            model.ok ? "" : ": WRONG"));
  print_stdout("\n");
  print_verdicts(model.verdicts, options.verdict.step(), options.wide);
  for (const std::string& remark : model.remarks) {
    print_stdout("{}\n", wrapped("remark: " + remark, line_width(), 2));
  }
}

Json document_of(const MeasuredModel& model, const BenchOptions& options) {
  Json document{{"model", model.name}, {"ok", model.ok}, {"remarks", model.remarks}};
  const Json verdicts = to_json(model.verdicts, options.verdict.step());
  for (const auto& [name, value] : verdicts.items()) document.add(name, value);
  return document;
}

Status run_verdict(const BenchOptions& options) {
  if (Status ok = options.model.check(); !ok) return ok;
  const auto models = read_models(options);
  if (!models) return tl::unexpected<Error>(models.error());
  const auto session = BenchSession::open("bench verdict", options, true);
  if (!session) return tl::unexpected<Error>(session.error());
  const BenchContext context = session->context();
  VerdictBench bench(options, context);
  Json all = Json::array();
  bool right = true;
  for (const ModelCases& model : *models) {
    const auto measured = bench.run(model);
    if (!measured) return tl::unexpected<Error>(measured.error());
    if (Status ok = options.verdict.check_step(measured->verdicts.sums); !ok) return ok;
    right = right && measured->ok;
    if (options.json) {
      all.push_back(document_of(*measured, options));
    } else {
      print(*measured, session->gpu(), options);
    }
  }
  if (options.json) {
    print_json({{"device", session->gpu().device()},
                {"name", session->gpu().spec().full_name},
                {"models", std::move(all)}});
  }
  if (right) return {};
  return fail(ErrorCode::kInternal, "bench verdict: a GEMM is wrong");
}

// Prints records of layers with their verdicts by today's rule.
Status judge_records(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20;
  const auto file = InputFile::open(path);
  if (!file) return tl::unexpected<Error>(file.error());
  const auto bytes = file->read_all(kMostBytes);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  auto records = parse_records(std::string(bytes->begin(), bytes->end()), file->name());
  if (!records) return tl::unexpected<Error>(records.error());
  for (Record& record : *records) {
    if (Status ok = set_verdicts(record); !ok) return ok;
  }
  for (const Record& record : *records) print_stdout("{}\n", to_json(record).dump_ascii());
  return {};
}

Status run(const BenchOptions& options) {
  if (!options.judge.empty()) return judge_records(options.judge);
  if (options.model.models.empty()) {
    return refuse("bench verdict is given without --model; allowed: one model or several");
  }
  return run_verdict(options);
}

}  // namespace

std::function<std::optional<Status>()> add_bench_verdict(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "verdict",
      "whether FP8 pays in each layer of a model: its GEMMs and its share of quantising beside its "
      "GEMMs in bf16 by cuBLASLt, in one interleaved run a layer; experts beside grouped GEMMs in "
      "bf16, which are estimated");
  auto options = std::make_shared<BenchOptions>();
  options->model.add_to(*app);
  options->verdict.add_to(*app, "");
  add_recipe_option(*app, options->recipe,
                    "types and scales of FP8 layers: auto (what the checkpoint's "
                    "quantization_config says, else blockwise)");
  add_gpu_option(*app, options->device);
  add_records_option(*app, options->records);
  add_option(*app, "--judge", options->judge,
             "a file of records of layers, which are printed with their verdicts instead of a "
             "measurement; -: standard input");
  add_rounds_option(*app, options->rounds);
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  add_progress_option(*app, options->progress);
  return when_given(app, options, run);
}

}  // namespace octile::tools
