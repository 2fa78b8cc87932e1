// The table and the records of `octile inspect`.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/json.h"
#include "tools/common/text_table.h"
#include "tools/inspect/measured.h"
#include "tools/inspect/stored_codes.h"
#include "tools/inspect/subjects.h"

namespace octile::tools {

// "28.13 dB"; "exact" without an error, "-inf dB" of an error without a signal, "-" of nothing.
std::string db_text(double snr_db);
// Returns the SNR, infinity of nothing, so that it can be sorted.
double sorted_db(double snr_db);
// "0", "0.012 %", "3.4 %".
std::string share_text(double share);
// An SNR as JSON: null without an error, and of nothing.
Json db_json(double snr_db);

inline constexpr std::size_t kMostLines = 20'000;  // of a table

// The measurements of all weights.
class Report {
 public:
  // Keeps the `top` worst lines; if it is 0, as many as memory is bounded by.
  Report(const Subjects& subjects, const RecipeTypes& recipes, std::size_t top)
      : subjects_(subjects),
        recipes_(recipes),
        top_(top == 0 ? kMostLines : std::min(top, kMostLines)),
        totals_(recipes.types().size()),
        remarks_(subjects.remarks) {}

  // Takes what was measured of a subject. Returns its record.
  Json add(const Subject& subject, const Measured& measured);
  // Takes what a subject in FP8 holds, and what quantising its values again loses. Returns its
  // record.
  Json add(const Subject& subject, const StoredCodes& codes, const Measured& measured);

  void remark(std::string text) { remarks_.push_back(std::move(text)); }

  // The run before its first weight, and all of it.
  Json head(double sample) const;
  Json totals() const;

  // A line each, the worst first.
  TextTable table() const;
  // The weights in FP8, those with the most zeros first.
  TextTable codes_table() const;
  // The sentences around the table.
  std::string headline(double sample) const;
  std::vector<std::string> conclusions() const;
  // A sentence for each weight with NaNs or infinities.
  std::vector<std::string> nonfinite() const { return nonfinite_; }

 private:
  struct Row {
    const Subject* subject = nullptr;
    const Recipe* recipe = nullptr;
    reference::Loss loss;
    std::optional<double> pow2_rank, f32_rank;
  };
  // The earlier one of equal rows stays first.
  struct WorseRow {
    bool operator()(const Row& a, const Row& b) const {
      return sorted_db(a.loss.rank()) < sorted_db(b.loss.rank());
    }
  };
  void add_row(Row row);
  // The pattern of --keep that leaves the worst weight in BF16, and what that leaves of the others.
  std::string advice() const;
  Json json_of(const RecipeTypes::Row& row, const std::vector<reference::Loss>& losses,
               bool has_experts) const;

  const Subjects& subjects_;
  const RecipeTypes& recipes_;
  const std::size_t top_;
  std::multiset<Row, WorseRow> rows_;
  std::size_t rows_in_all_ = 0;
  std::vector<std::pair<const Subject*, StoredCodes>> codes_;
  std::vector<reference::Loss> totals_;  // one for each type
  std::map<std::string, std::vector<reference::Loss>> by_role_;
  std::vector<std::string> nonfinite_;
  std::vector<std::string> remarks_;
  std::size_t measured_ = 0;
};

}  // namespace octile::tools
