#include "tools/page/content.h"

#include <algorithm>
#include <utility>

#include "generator/families.h"
#include "runtime/families/families.h"
#include "runtime/prove/families.h"
#include "runtime/tuned/tuning_records.h"
#include "tools/models/workload.h"
#include "tools/verdict/models.h"

namespace octile::tools {
namespace {

std::optional<double> positive(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

void name_row(const Problem& problem, const LayerNames& names, PageRow& row) {
  row.problem = to_text(with_dynamic_tokens(problem));
  row.label = short_text(with_dynamic_tokens(problem));
  row.kind = operation_of(problem);
  const auto name = names.find(row.problem);
  if (name != names.end()) row.layer = name->second;
}

// Adds what follows from problem, token count and time.
void add_rates(const Problem& problem, std::int64_t tokens, PageRow& row) {
  const double flop = flops(problem, tokens);
  const auto bytes = static_cast<double>(bytes_moved(problem, tokens));
  row.tbps = positive(bytes / row.us * 1e-6);
  if (flop <= 0 || bytes <= 0) return;
  row.intensity = flop / bytes;
  row.tflops = flop / row.us * 1e-6;
}

void add_prediction(const Problem& problem, std::int64_t tokens,
                    const std::optional<DeviceSpec>& device, PageRow& row) {
  if (!device || !estimates_time(problem)) return;
  const auto config = parse_config(problem, row.config);
  if (config) row.predicted_us = positive(estimate_us(*config, problem, tokens, *device));
}

PageRow row_of(const cache::TuningRecord& record, const PageContent& content) {
  PageRow row;
  row.problem = row.label = record.problem;
  row.kind = record.family;
  row.tokens = record.tokens;
  row.us = record.winner.median_us;
  row.low_us = positive(record.winner.low_us);
  row.high_us = positive(record.winner.high_us);
  row.config = record.winner.config;
  row.date = record.date;
  if (record.default_config) {
    row.default_us = positive(record.default_config->median_us);
    row.gain = record.gain;
  }
  for (const auto& [name, us] : record.baselines_us) {
    if (name == "bf16") {
      row.bf16_us = positive(us);
    } else if (name != "floor" && !row.peer_us) {
      row.peer = name;
      row.peer_us = positive(us);
    }
  }
  const auto problem = parse_problem(record.problem);
  if (!problem || row.us <= 0) return row;
  if (const auto* gemm = problem_as<GemmProblem>(*problem); gemm != nullptr && record.error) {
    row.promote = promote_text(gemm->promote);
    row.error = record.error;
  }
  name_row(*problem, content.names, row);
  add_rates(with_dynamic_tokens(*problem), record.tokens, row);
  add_prediction(with_dynamic_tokens(*problem), record.tokens, content.device, row);
  return row;
}

std::string text_in(const Json& details, const char* name) {
  const Json* found = details.find(name);
  return found != nullptr && found->string() != nullptr ? *found->string() : std::string();
}

void add_error(const Json& details, PageRow& row) {
  const Json *error = details.find("error"), *promote = details.find("promote");
  if (error == nullptr || !error->number() || promote == nullptr) return;
  row.promote = promote->string() == nullptr ? promote->dump() : *promote->string();
  row.error = error->number();
}

void add_peers(const Record& record, PageRow& row) {
  for (const PeerValues& peer : record.peers) {
    if (!peer.values) continue;
    if (peer.name == "default") {
      row.default_us = positive(peer.values->median);
      row.gain = ratio_of(record, peer).median;
    } else if (peer.name == "bf16") {
      row.bf16_us = positive(peer.values->median);
    } else if (!row.peer_us) {
      row.peer = peer.name;
      row.peer_us = positive(peer.values->median);
    }
  }
}

PageRow row_of(const Record& record, const PageContent& content) {
  PageRow row;
  row.problem = record.what;
  row.label = record.part.empty() ? record.what : record.what + ", " + record.part;
  row.kind = "bench";
  row.us = record.values.median;
  row.date = record.date;
  if (record.values.interval) {
    row.low_us = record.values.interval->lo;
    row.high_us = record.values.interval->hi;
  }
  row.config = text_in(record.details, "config");
  add_error(record.details, row);
  add_peers(record, row);
  const auto problem = parse_problem(record.what);
  if (!problem) return row;
  const TokenAxis axis = token_axis(*problem);
  if (axis.is_dynamic() || !record.part.empty()) return row;
  row.tokens = axis.tokens;
  name_row(*problem, content.names, row);
  add_rates(with_dynamic_tokens(*problem), axis.tokens, row);
  add_prediction(with_dynamic_tokens(*problem), axis.tokens, content.device, row);
  return row;
}

}  // namespace

std::vector<PageRow> rows_of(const PageContent& content) {
  std::vector<PageRow> rows;
  for (const cache::TuningRecord& record : content.tuned) rows.push_back(row_of(record, content));
  for (const Record& record : content.measured) {
    if (record.ok && record.unit == "us" && record.values.median > 0)
      rows.push_back(row_of(record, content));
  }
  return rows;
}

Result<LayerNames> layer_names(const ModelOptions& options, const std::string& recipe) {
  ModelUse use = options.use();
  if (!use.modes_given) use.modes = {Mode::kDecode, Mode::kPrefill, Mode::kTraining};
  if (!use.layout) use.layout = Layout::kBoth;
  LayerNames names;
  for (const std::string& model : options.models) {
    const auto rank = options.read(model, recipe);
    if (!rank) return tl::unexpected<Error>(rank.error());
    const auto works = works_of_model(*rank, use);
    if (!works) return tl::unexpected<Error>(works.error());
    for (const Work& work : *works) {
      std::string& name = names[to_text(with_dynamic_tokens(work.problem))];
      if (name.find(work.name) != std::string::npos) continue;
      name += name.empty() ? work.name : ", " + work.name;
    }
  }
  return names;
}

Status add_verdicts(PageContent& content, const ModelOptions& options, const std::string& recipe,
                    const std::vector<std::int64_t>& counts) {
  if (!content.device || !refused_operations(*content.device).empty()) return {};
  cache::TuningSet records;
  records.add(content.tuned, "the page");
  records.add(embedded_tuning(), kEmbeddedOrigin);
  const ModelUse asked = options.use();
  for (const Mode mode : asked.modes) {
    ModelUse use = asked;
    use.modes = {mode};
    use.modes_given = true;
    use.counts = counts.empty() ? counts_of(mode) : counts_in(mode, asked.modes, counts);
    if (use.counts.empty()) continue;
    auto models =
        verdicts_of_models(options, recipe, use, *content.device, {records, content.measured});
    if (!models) return tl::unexpected<Error>(models.error());
    for (auto& [model, verdicts] : *models) {
      content.judged.push_back(model);
      for (JudgedLayer& judged : verdicts.layers) {
        if (options.models.size() > 1) judged.verdict.layer = model + " " + judged.verdict.layer;
        content.layers.push_back(std::move(judged.verdict));
      }
      for (ModelVerdict& sum : verdicts.sums) content.totals.push_back(std::move(sum));
    }
  }
  return {};
}

}  // namespace octile::tools
