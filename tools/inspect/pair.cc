#include "tools/inspect/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/loss.h"
#include "runtime/reference/quantize/loss_kernels.h"
#include "tools/inspect/report.h"
#include "tools/models/checkpoint/stored_weights.h"

namespace octile::tools {
namespace {

using reference::PanelPlace;

constexpr std::int64_t kPairRows = 128, kPairCols = 4096;

std::string shape_text(const Subject& subject) {
  return fmt::format("{} x [{}, {}]", subject.matrices(), subject.first().rows,
                     subject.first().cols);
}

Result<reference::RunDifference> difference_of_matrices(const FileMatrix& a, const FileMatrix& b) {
  const std::int64_t down = ceil_div(a.rows(), kPairRows), across = ceil_div(a.cols(), kPairCols);
  std::vector<reference::RunDifference> panels(static_cast<std::size_t>(down * across));
  const Status done = reference::try_parallel_for(down * across, 0, [&](std::int64_t at, int) {
    const PanelPlace place{at / across * kPairRows, at % across * kPairCols,
                           std::min(kPairRows, a.rows() - at / across * kPairRows),
                           std::min(kPairCols, a.cols() - at % across * kPairCols)};
    std::vector<double> of_a, of_b;
    Status ok = a.read_exact(place, of_a);
    if (ok) ok = b.read_exact(place, of_b);
    if (ok) {
      panels[static_cast<std::size_t>(at)] =
          reference::difference_of_run(of_a.data(), of_b.data(), std::ssize(of_a));
    }
    return ok;
  });
  if (!done) return tl::unexpected<Error>(done.error());
  reference::RunDifference sum;
  for (const reference::RunDifference& panel : panels) sum += panel;
  return sum;
}

// Says why a tensor of one checkpoint has no counterpart in the other.
std::string alone_text(const std::string& name, const Subjects& other, const char* here,
                       const char* there) {
  if (const auto why = other.why_unread.find(name); why != other.why_unread.end()) {
    return fmt::format("'{}' of the {} is {}", name, there, why->second);
  }
  if (other.unreadable_files == 0) return fmt::format("'{}' is in the {} alone", name, here);
  return fmt::format("'{}' is in the {}, and in no file of the {} that could be read", name, here,
                     there);
}

}  // namespace

Pairing pair_up(const Subjects& a, const Subjects& b, bool are_arrays) {
  Pairing pairing;
  for (const Subjects* side : {&a, &b}) {
    for (const Subject& subject : side->all) {
      for (const std::string& remark : subject.remarks) {
        pairing.remarks.push_back(
            fmt::format("{} ({})", remark, side == &a ? "in the first" : "in the second"));
      }
    }
  }
  // Experts of several shapes have one name.
  std::multimap<std::string, const Subject*> of_b;
  for (const Subject& subject : b.all) of_b.emplace(are_arrays ? "" : subject.name, &subject);
  for (const Subject& subject : a.all) {
    const auto [begin, end] = of_b.equal_range(are_arrays ? "" : subject.name);
    if (begin == end) {
      pairing.remarks.push_back(alone_text(subject.name, b, "first", "second"));
      continue;
    }
    const auto same = std::find_if(begin, end, [&](const auto& one) {
      return shape_text(subject) == shape_text(*one.second);
    });
    const auto found = same == end ? begin : same;
    const Subject& other = *found->second;
    of_b.erase(found);
    if (shape_text(subject) != shape_text(other) || subject.parts.size() != other.parts.size()) {
      pairing.remarks.push_back(fmt::format("'{}' is {} in the first and {} in the second",
                                            subject.name, shape_text(subject), shape_text(other)));
      continue;
    }
    pairing.both.emplace_back(&subject, &other);
  }
  for (const auto& [name, subject] : of_b) {
    pairing.remarks.push_back(alone_text(name, a, "second", "first"));
  }
  return pairing;
}

Result<PairRow> compare(const Subject& a, const Subject& b) {
  PairRow row{a.name, a.first().tensor().dtype, b.first().tensor().dtype, a.elements(), {}};
  for (std::size_t part = 0; part < a.parts.size(); ++part) {
    for (std::int64_t i = 0; i < a.parts[part].count; ++i) {
      const auto one =
          difference_of_matrices(FileMatrix(a.parts[part], i), FileMatrix(b.parts[part], i));
      if (!one) return tl::unexpected<Error>(one.error());
      row.difference += *one;
    }
  }
  return row;
}

Json pair_head(const std::vector<std::string>& paths, const Subjects& a, const Subjects& b,
               const Pairing& pairing) {
  return {{"what", "inspect"},
          {"pair", paths},
          {"files", a.files + b.files},
          {"tensors", pairing.both.size()}};
}

Json pair_totals(const std::vector<PairRow>& rows, const std::vector<std::string>& problems,
                 const std::vector<std::string>& remarks) {
  reference::RunDifference all;
  for (const PairRow& row : rows) all += row.difference;
  return {{"what", "model"},
          {"measured", rows.size()},
          {"differing", all.differing},
          {"nonfinite", all.nonfinite},
          {"snr_db", db_json(reference::snr_db(all.signal, all.noise))},
          {"largest_difference", all.largest},
          {"problems", problems},
          {"remarks", remarks}};
}

Json pair_json(const PairRow& row) {
  const reference::RunDifference& d = row.difference;
  return {{"what", "pair"},
          {"name", row.name},
          {"a_dtype", row.a_dtype},
          {"b_dtype", row.b_dtype},
          {"elements", row.elements},
          {"differing", d.differing},
          {"nonfinite", d.nonfinite},
          {"snr_db", db_json(reference::snr_db(d.signal, d.noise))},
          {"largest_difference", d.largest}};
}

TextTable pair_table(std::vector<PairRow> rows, std::size_t top) {
  std::ranges::stable_sort(rows, {}, [](const PairRow& row) {
    return sorted_db(reference::snr_db(row.difference.signal, row.difference.noise));
  });
  TextTable table({"<tensor", "<first", "<second", "SNR", "differing", "largest difference"});
  table.cut_name("tensor", 20)
      .leave_out({"largest difference"})
      .leave_out_last({"first", "second", "differing"});
  for (std::size_t i = 0; i < std::min(rows.size(), top); ++i) {
    const reference::RunDifference& d = rows[i].difference;
    table.add_row(
        {std::string(without_weight(rows[i].name)), rows[i].a_dtype, rows[i].b_dtype,
         db_text(reference::snr_db(d.signal, d.noise)),
         share_text(static_cast<double>(d.differing) / static_cast<double>(rows[i].elements)),
         fmt::format("{:.3g}", d.largest)});
  }
  return table;
}

}  // namespace octile::tools
