#include "tools/inspect/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>

#include "tools/models/checkpoint/stored_weights.h"

namespace octile::tools {
namespace {

using reference::BlockLoss;
using reference::Loss;

std::string short_name(const Subject& subject) { return std::string(without_weight(subject.name)); }

std::string extents_text(const Subject& subject) {
  const std::int64_t matrices = subject.matrices();
  const std::string one = fmt::format("{} x {}{}", subject.first().rows, subject.first().cols,
                                      subject.is_transposed() ? " [k, n]" : "");
  return matrices == 1 ? one : fmt::format("{} x {}", matrices, one);
}

std::string place_text(const Subject& subject, const BlockLoss& block) {
  std::string at = fmt::format("[{}, {}] {}", block.row, block.col, db_text(block.snr_db));
  if (block.flushed_share > 0.5) at += fmt::format(", {} flushed", share_text(block.flushed_share));
  return subject.matrices() == 1 ? at : fmt::format("expert {} {}", block.matrix, at);
}

Json block_json(const BlockLoss& block, bool has_experts) {
  Json object = Json::object();
  if (has_experts) object.set("expert", block.matrix);
  object.set("row", block.row);
  object.set("col", block.col);
  object.set("rows", block.rows);
  object.set("cols", block.cols);
  object.set("snr_db", db_json(block.snr_db));
  object.set("flushed_share", block.flushed_share);
  object.set("amax", static_cast<double>(block.amax));
  object.set("set_by_one", block.is_set_by_one);
  return object;
}

std::optional<double> rest_of(const std::vector<Loss>& losses, std::optional<std::size_t> type) {
  return type ? std::optional(losses[*type].rest_snr()) : std::nullopt;
}

std::optional<double> rank_of(const std::vector<Loss>& losses, std::optional<std::size_t> type) {
  return type ? std::optional(losses[*type].rank()) : std::nullopt;
}

// "rest 31.57 dB, 0.0014 % flushed".
std::string loss_text(const Loss& loss) {
  return fmt::format("rest {}, {} flushed", db_text(loss.rest_snr()),
                     share_text(loss.flushed_share()));
}

std::string gain_text(const std::optional<double>& pow2, const std::optional<double>& f32) {
  if (!pow2 || !f32) return "-";
  if (!std::isfinite(*pow2) || !std::isfinite(*f32)) return "-";
  return fmt::format("{:+.2f} dB", *f32 - *pow2);
}

std::string size_text(std::uint64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (size >= 1e9) return fmt::format("{:.1f} GB", size * 1e-9);
  if (size >= 1e6) return fmt::format("{:.1f} MB", size * 1e-6);
  return fmt::format("{} bytes", bytes);
}

std::string counted(std::size_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

// "1 NaN and 2 infinities".
std::string nonfinite_text(const Measured& measured) {
  const reference::ValueCounts& values = measured.values;
  const bool beyond = measured.has_beyond_fp32;
  const std::string nans = counted(static_cast<std::size_t>(values.nans), "NaN", "NaNs");
  const std::string others = counted(static_cast<std::size_t>(values.infinities),
                                     !beyond                   ? "infinity"
                                     : measured.has_infinities ? "infinity or value beyond fp32"
                                                               : "value beyond fp32",
                                     !beyond                   ? "infinities"
                                     : measured.has_infinities ? "infinities and values beyond fp32"
                                                               : "values beyond fp32");
  return fmt::format("{} and {}", nans, others);
}

// ", in expert 5", ", in 7 experts, 5 first"; nothing of a single matrix.
std::string experts_text(const Subject& subject, const std::vector<NonfiniteMatrix>& matrices) {
  if (subject.matrices() == 1) return "";
  if (matrices.size() == 1) return fmt::format(", in expert {}", matrices.front().number);
  return fmt::format(", in {} experts, {} first", matrices.size(), matrices.front().number);
}

std::string names_of(std::span<const RecipeTypes::Row> rows) {
  std::vector<std::string_view> names;
  for (const RecipeTypes::Row& row : rows) names.push_back(row.recipe->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string db_text(double snr_db) {
  if (std::isnan(snr_db)) return "-";
  return std::isinf(snr_db) && snr_db > 0 ? "exact" : fmt::format("{:.2f} dB", snr_db);
}

double sorted_db(double snr_db) {
  return std::isnan(snr_db) ? std::numeric_limits<double>::infinity() : snr_db;
}

std::string share_text(double share) {
  if (share == 0.0) return "0";
  return share < 0.1 ? fmt::format("{:.2g} %", 100.0 * share)
                     : fmt::format("{:.0f} %", 100.0 * share);
}

Json db_json(double snr_db) { return std::isfinite(snr_db) ? Json(snr_db) : Json(nullptr); }

Json Report::json_of(const RecipeTypes::Row& row, const std::vector<Loss>& losses,
                     bool has_experts) const {
  const Loss& loss = losses[row.type];
  Json object{{"recipe", std::string(row.recipe->name)},
              {"type", to_text(recipes_.types()[row.type])},
              {"snr_db", db_json(loss.snr())},
              {"rest_snr_db", db_json(loss.rest_snr())},
              {"bulk_snr_db", db_json(loss.bulk_snr())},
              {"flushed_share", loss.flushed_share()},
              {"saturated_share", loss.share_of_nonzero(loss.saturated)},
              {"blocks", loss.blocks},
              {"blocks_set_by_one", loss.set_by_one}};
  const auto pow2 = rest_of(losses, row.pow2), f32 = rest_of(losses, row.f32);
  object.set("pow2_rest_snr_db", pow2 ? db_json(*pow2) : Json(nullptr));
  object.set("f32_rest_snr_db", f32 ? db_json(*f32) : Json(nullptr));
  Json worst = Json::array();
  for (const BlockLoss& block : loss.worst()) worst.push_back(block_json(block, has_experts));
  if (!worst.empty()) object.set("worst_blocks", std::move(worst));
  return object;
}

Json Report::add(const Subject& subject, const Measured& measured) {
  ++measured_;
  const reference::ValueCounts& values = measured.values;
  const TensorInFile& stored = *subject.first().stored;
  Json object{{"what", "tensor"},
              {"name", subject.name},
              {"file", stored.file->name()},
              {"dtype", stored.tensor.dtype},
              {"shape", stored.tensor.shape},
              {"matrices", subject.matrices()},
              {"elements", values.elements},
              {"zeros", values.zeros},
              {"nans", values.nans},
              {"infinities", values.infinities},
              {"amax", static_cast<double>(values.amax)}};
  if (!subject.out.empty()) object.set("left_out", subject.out);
  if (!measured.nonfinite.empty()) {
    nonfinite_.push_back(fmt::format("{}: '{}' has {}{}", measured.nonfinite.front().file,
                                     subject.name, nonfinite_text(measured),
                                     experts_text(subject, measured.nonfinite)));
  }
  for (const std::string& remark : subject.remarks) remarks_.push_back(remark);
  if (!subject.remarks.empty()) object.set("remarks", subject.remarks);
  if (measured.losses.empty()) return object;
  if (!subject.role.empty()) object.set("keep", subject.role);
  object.set("layout", subject.is_transposed() ? "[k, n]" : "[n, k]");
  Json recipes = Json::array();
  auto& role = by_role_.emplace(subject.role, totals_.size()).first->second;
  for (std::size_t type = 0; type < totals_.size(); ++type) {
    totals_[type] += measured.losses[type];
    role[type] += measured.losses[type];
  }
  for (const RecipeTypes::Row& row : recipes_.rows()) {
    recipes.push_back(json_of(row, measured.losses, subject.matrices() > 1));
    add_row({&subject, row.recipe, measured.losses[row.type], rank_of(measured.losses, row.pow2),
             rank_of(measured.losses, row.f32)});
  }
  object.set("recipes", std::move(recipes));
  return object;
}

Json Report::add(const Subject& subject, const StoredCodes& codes, const Measured& measured) {
  Json object = add(subject, measured);
  Json worst = Json::array();
  for (const StoredBlock& block : codes.worst) {
    Json one = Json::object();
    if (subject.matrices() > 1) one.set("expert", block.matrix);
    one.set("row", block.row);
    one.set("col", block.col);
    one.set("rows", block.rows);
    one.set("cols", block.cols);
    one.set("zero_share", block.zero_share);
    one.set("largest", block.largest);
    worst.push_back(std::move(one));
  }
  object.set("held", {{"zero_share", codes.share(codes.zeros)},
                      {"at_largest_share", codes.share(codes.at_largest)},
                      {"blocks", codes.blocks},
                      {"blocks_set_by_one", codes.set_by_one},
                      {"blocks_half_used", codes.half_used},
                      {"scales", codes.scales},
                      {"scales_not_pow2", codes.not_pow2},
                      {"bad_scales", codes.bad_scales},
                      {"worst_blocks", std::move(worst)}});
  codes_.emplace_back(&subject, codes);
  return object;
}

TextTable Report::codes_table() const {
  std::vector<const std::pair<const Subject*, StoredCodes>*> rows;
  for (const auto& one : codes_) rows.push_back(&one);
  std::ranges::stable_sort(rows, std::greater(),
                           [](const auto* row) { return row->second.share(row->second.zeros); });
  TextTable table({"<FP8 tensor", "<shape", "<type", "zeros", "at the largest", "set by one",
                   "half used", "scales", "powers of two", "<worst block"});
  table.cut_name("FP8 tensor", 30)
      .leave_out({"shape", "at the largest", "scales", "worst block", "half used"})
      .leave_out_last({"powers of two", "type", "set by one"});
  for (std::size_t i = 0; i < std::min(rows.size(), top_); ++i) {
    const auto& [subject, codes] = *rows[i];
    const auto of_blocks = [&](std::int64_t count) {
      return codes.blocks == 0
                 ? std::string("-")
                 : share_text(static_cast<double>(count) / static_cast<double>(codes.blocks));
    };
    std::string worst = "-";
    if (!codes.worst.empty()) {
      const StoredBlock& block = codes.worst.front();
      worst = fmt::format("[{}, {}] {} zeros", block.row, block.col, share_text(block.zero_share));
      if (subject->matrices() > 1) worst = fmt::format("expert {} {}", block.matrix, worst);
    }
    const double pow2 = static_cast<double>(codes.scales - codes.bad_scales - codes.not_pow2);
    table.add_row(
        {short_name(*subject), extents_text(*subject), subject->first().tensor().dtype.substr(3),
         share_text(codes.share(codes.zeros)), share_text(codes.share(codes.at_largest)),
         of_blocks(codes.set_by_one), of_blocks(codes.half_used), std::to_string(codes.scales),
         codes.scales == 0 ? "-" : share_text(pow2 / static_cast<double>(codes.scales)), worst});
  }
  return table;
}

Json Report::head(double sample) const {
  std::uint64_t bytes = 0;
  std::size_t quantised = 0;
  for (const Subject& subject : subjects_.all) {
    bytes += subject.bytes();
    quantised += subject.is_quantised ? 1 : 0;
  }
  Json recipes = Json::array();
  for (const RecipeTypes::Row& row : recipes_.rows()) recipes.push_back(row.recipe->name);
  return {{"what", "inspect"},      {"files", subjects_.files},
          {"bytes", bytes},         {"tensors", subjects_.all.size()},
          {"quantised", quantised}, {"recipes", std::move(recipes)},
          {"sample", sample}};
}

Json Report::totals() const {
  Json recipes = Json::array();
  for (const RecipeTypes::Row& row : recipes_.rows()) {
    Json one = json_of(row, totals_, false);
    // A block says nothing without its tensor.
    Json kept = Json::object();
    for (const Json::Member& member : one.items()) {
      if (member.name != "worst_blocks") kept.set(member.name, member.value);
    }
    recipes.push_back(std::move(kept));
  }
  return {{"what", "model"},         {"measured", measured_},
          {"nonfinite", nonfinite_}, {"problems", subjects_.problems},
          {"remarks", remarks_},     {"recipes", std::move(recipes)}};
}

void Report::add_row(Row row) {
  ++rows_in_all_;
  rows_.insert(std::move(row));
  if (rows_.size() > top_) rows_.erase(std::prev(rows_.end()));
}

TextTable Report::table() const {
  TextTable table({"<tensor", "<shape", "<recipe", "SNR", "rest", "bulk", "flushed", "saturated",
                   "fp32 scales", "<worst block"});
  table.cut_name("tensor", 36)
      .leave_out({"saturated", "shape", "fp32 scales", "bulk", "worst block"})
      .leave_out_last({"SNR", "recipe", "flushed"});
  for (const Row& row : rows_) {
    const Loss& loss = row.loss;
    table.add_row({short_name(*row.subject), extents_text(*row.subject),
                   std::string(row.recipe->name), db_text(loss.snr()), db_text(loss.rest_snr()),
                   db_text(loss.bulk_snr()), share_text(loss.flushed_share()),
                   share_text(loss.share_of_nonzero(loss.saturated)),
                   gain_text(row.pow2_rank, row.f32_rank),
                   loss.worst().empty() ? "-" : place_text(*row.subject, loss.worst().front())});
  }
  return table;
}

std::string Report::headline(double sample) const {
  std::uint64_t bytes = 0;
  std::size_t quantised = 0, fp8 = 0, transposed = 0, out = 0;
  for (const Subject& subject : subjects_.all) {
    bytes += subject.bytes();
    std::size_t* const of = subject.first().is_fp8() ? &fp8
                            : subject.is_quantised   ? &quantised
                            : !subject.out.empty()   ? &out
                                                     : nullptr;
    if (of != nullptr) ++*of;
    if (subject.is_quantised && subject.is_transposed()) ++transposed;
  }
  std::string text =
      fmt::format("{} with {}, {}", counted(subjects_.files, "file", "files"),
                  counted(subjects_.all.size(), "tensor", "tensors"), size_text(bytes));
  if (quantised > 0) {
    text += fmt::format(": {} quantised by {}", counted(quantised, "weight is", "weights are"),
                        names_of(recipes_.rows()));
  }
  if (fp8 > 0)
    text += fmt::format("{} {} in FP8", quantised > 0 ? "," : ":",
                        counted(fp8, "weight is", "weights are"));
  if (transposed > 0)
    text += fmt::format(", {} stored as [k, n]", counted(transposed, "is", "are"));
  if (out > 0) text += fmt::format(", {} in BF16", counted(out, "stays", "stay"));
  if (!subjects_.recipe_of.empty()) {
    text += fmt::format("; {} states {}", subjects_.recipe_of, subjects_.recipe);
  }
  if (sample < 1) text += fmt::format("; a sample of {:g} of each", sample);
  return text;
}

std::vector<std::string> Report::conclusions() const {
  std::vector<std::string> texts;
  if (rows_in_all_ > rows_.size()) {
    texts.push_back(fmt::format("{}; {}",
                                counted(rows_in_all_ - rows_.size(), "more line", "more lines"),
                                top_ == kMostLines ? "--json has all" : "--top 0 prints all"));
  }
  if (codes_.size() > top_) {
    texts.push_back(fmt::format(
        "{} in FP8", counted(codes_.size() - top_, "more weight is", "more weights are")));
  }
  for (const RecipeTypes::Row& row : recipes_.rows()) {
    if (rows_.empty()) break;
    const Loss& all = totals_[row.type];
    texts.push_back(
        fmt::format("{}: SNR {}, {}, bulk {}; {} of {} blocks have a scale that one element sets; "
                    "fp32 scales instead of powers of two: {}",
                    row.recipe->name, db_text(all.snr()), loss_text(all), db_text(all.bulk_snr()),
                    all.set_by_one, all.blocks,
                    gain_text(rank_of(totals_, row.pow2), rank_of(totals_, row.f32))));
  }
  if (!rows_.empty()) texts.push_back(advice());
  if (rows_.empty() && codes_.empty() && measured_ > 0) {
    texts.emplace_back("no tensor is a matrix that is quantised: NaNs and infinities are counted");
  }
  texts.insert(texts.end(), remarks_.begin(), remarks_.end());
  return texts;
}

std::string Report::advice() const {
  const Row& worst = *rows_.begin();
  const std::string loss = fmt::format("{} by {}", loss_text(worst.loss), worst.recipe->name);
  if (worst.loss.nonzero == 0)
    return "every weight is zero or not finite: there is nothing to lose";
  const std::string& role = worst.subject->role;
  if (role.empty()) return fmt::format("'{}' is the worst: {}", worst.subject->name, loss);
  const auto row = std::ranges::find(recipes_.rows(), worst.recipe, &RecipeTypes::Row::recipe);
  Loss others;
  for (const auto& [name, losses] : by_role_) {
    if (name != role) others += losses[row->type];
  }
  const std::string rest = by_role_.size() == 1 ? "nothing else is quantised"
                           : others.nonzero == 0
                               ? "the others have nothing to lose"
                               : fmt::format("the others have {}", loss_text(others));
  return fmt::format("--keep '{}' leaves the worst in BF16: {}; {}", role, loss, rest);
}

}  // namespace octile::tools
