#include "tools/inspect/pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/reference/parallel.h"
#include "runtime/reference/quantize/loss.h"
#include "runtime/reference/quantize/loss_kernels.h"
#include "runtime/reference/quantize/reference_kernels.h"
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

// Reads a panel as fp32.
Status read_floats(const FileMatrix& matrix, const PanelPlace& place, std::vector<float>& out) {
  const auto count = static_cast<std::size_t>(place.rows * place.cols);
  std::vector<std::byte> scratch(count * sizeof(float));
  const auto panel = matrix.read(place, scratch);
  if (!panel) return tl::unexpected<Error>(panel.error());
  out.resize(count);
  reference::widen(panel->x, matrix.dtype(), 0, static_cast<std::int64_t>(count), out.data());
  return {};
}

Result<reference::RunDifference> difference_of_matrices(const FileMatrix& a, const FileMatrix& b) {
  const std::int64_t down = ceil_div(a.rows(), kPairRows), across = ceil_div(a.cols(), kPairCols);
  std::vector<reference::RunDifference> panels(static_cast<std::size_t>(down * across));
  const Status done = reference::try_parallel_for(down * across, 0, [&](std::int64_t at, int) {
    const PanelPlace place{at / across * kPairRows, at % across * kPairCols,
                           std::min(kPairRows, a.rows() - at / across * kPairRows),
                           std::min(kPairCols, a.cols() - at % across * kPairCols)};
    std::vector<float> of_a, of_b;
    Status ok = read_floats(a, place, of_a);
    if (ok) ok = read_floats(b, place, of_b);
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

}  // namespace

Pairing pair_up(const Subjects& a, const Subjects& b) {
  Pairing pairing;
  std::map<std::string, const Subject*> of_b;
  for (const Subject& subject : b.all) of_b.emplace(subject.name, &subject);
  for (const Subject& subject : a.all) {
    const auto found = of_b.find(subject.name);
    if (found == of_b.end()) {
      pairing.remarks.push_back(fmt::format("'{}' is in the first alone", subject.name));
      continue;
    }
    const Subject& other = *found->second;
    of_b.erase(found);
    if (shape_text(subject) != shape_text(other) || subject.parts.size() != other.parts.size()) {
      pairing.remarks.push_back(fmt::format("'{}' is {} in the first and {} in the second",
                                            subject.name, shape_text(subject), shape_text(other)));
      continue;
    }
    pairing.both.emplace_back(&subject, &other);
  }
  for (const auto& [name, subject] : of_b)
    pairing.remarks.push_back(fmt::format("'{}' is in the second alone", name));
  return pairing;
}

Result<PairRow> compare(const Subject& a, const Subject& b) {
  PairRow row{
      a.name, a.first().stored.tensor.dtype, b.first().stored.tensor.dtype, a.elements(), {}};
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
  table.cut("tensor", 20).leave_out({"largest difference"});
  for (std::size_t i = 0; i < rows.size() && (top == 0 || i < top); ++i) {
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
