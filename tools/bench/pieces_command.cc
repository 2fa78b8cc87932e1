// octile bench pieces: the steps of a sharded optimizer over a model's weights.
#include <fmt/format.h>

#include <memory>

#include "generator/core/text_fields.h"
#include "tools/bench/pieces.h"
#include "tools/bench/session.h"
#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"
#include "tools/models/source.h"

namespace octile::tools {
namespace {

struct PiecesOptions : SessionOptions {
  std::string model = "llama-3-8b";
  std::int64_t layers = 32;
  std::int64_t ranks = 8;
  std::string cut = "rows";
  std::string x = "fp32";
  std::string q = "e4m3:128x128";
};

Result<TensorType> parse_type(const char* option, const std::string& text) {
  auto type = parse_tensor_type(text);
  if (type) return *type;
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} is '{}'; allowed: a type such as fp32 or e4m3:128x128", option, text));
}

// Returns what the pieces have in common. fp32 masters go by way of bf16.
Result<QuantizeProblem> read_common(const PiecesOptions& options) {
  const auto x = parse_type("--x", options.x);
  if (!x) return tl::unexpected<Error>(x.error());
  const auto q = parse_type("--q", options.q);
  if (!q) return tl::unexpected<Error>(q.error());
  QuantizeProblem common;
  common.x = *x;
  common.q = *q;
  if (x->dtype == DType::kFP32) common.via = DType::kBF16;
  for (const PiecesStep step : {PiecesStep::kAmax, PiecesStep::kScales}) {
    if (Status ok = check_supported(problem_of(common, step)); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  return common;
}

Result<RankPieces> read_rank(const PiecesOptions& options) {
  if (options.cut != "rows" && options.cut != "flat")
    return refuse(fmt::format("--cut is '{}'; allowed: rows, flat", options.cut));
  const auto model = find_model(options.model);
  if (!model) return tl::unexpected<Error>(model.error());
  return pieces_of(*model, options.model, options.layers, options.ranks,
                   options.cut == "rows" ? RankCut::kRows : RankCut::kFlat);
}

void print_steps(const RankPieces& rank, const std::vector<Record>& records) {
  print_stdout("{}\n{} weights, {} elements, {} of them on the rank; {}\n\n", records.front().what,
               rank.pieces.size(), rank.elements, rank.held, records.front().check);
  TextTable table({"<step", "us", "MB", "TB/s", "of a stream"});
  for (const Record& r : records) {
    const bool has_stream = !r.peers.empty();
    table.add_row({r.part, fmt::format("{:.1f}", r.values.median),
                   fmt::format("{:.1f}", detail_of(r, "bytes") * 1e-6),
                   fmt::format("{:.2f}", tera_per_second(r, "bytes")),
                   has_stream ? fmt::format("{:.3f}", ratio_of(r, r.peers.front()).median) : "-"});
  }
  print_stdout("{}\n", table.render());
}

Status run_pieces(const PiecesOptions& options) {
  const auto common = read_common(options);
  if (!common) return tl::unexpected<Error>(common.error());
  const auto rank = read_rank(options);
  if (!rank) return tl::unexpected<Error>(rank.error());
  const auto session = BenchSession::open("bench pieces", options, false);
  if (!session) return tl::unexpected<Error>(session.error());
  const auto records = bench_pieces(session->context(), *common, *rank);
  if (!records) return tl::unexpected<Error>(records.error());
  if (Status ok = session->keep(*records); !ok) return ok;
  if (!options.json) print_steps(*rank, *records);
  return session->finish(*records, "codes are wrong");
}

}  // namespace

std::function<std::optional<Status>()> add_bench_pieces(CLI::App& bench) {
  CLI::App* app = add_subcommand(
      bench, "pieces",
      "time the steps of a sharded optimizer over a model's weights (octile/pieces.h): maxima, "
      "scales and cast of one rank's ranges, transposes of whole weights, beside streams of as "
      "many bytes");
  auto options = std::make_shared<PiecesOptions>();
  add_option(*app, "--model", options->model, "as --model of `octile tune`").show_default();
  add_option(*app, "--layers", options->layers, "layers of the model").show_default();
  add_option(*app, "--ranks", options->ranks, "ranks that share the weights").show_default();
  add_option(*app, "--cut", options->cut,
             "rows: of each weight as many rows a rank; flat: equal ranges of all weights behind "
             "each other")
      .show_default();
  add_option(*app, "--x", options->x, "type of the weights that are quantised; fp32 by way of bf16")
      .show_default();
  add_option(*app, "--q", options->q, "type of the codes and scales").show_default();
  add_timing_options(*app, *options);
  add_json_option(*app, options->json);
  return when_given(app, options, run_pieces);
}

}  // namespace octile::tools
