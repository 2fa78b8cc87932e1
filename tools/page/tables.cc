#include "tools/page/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>

#include "tools/models/judge.h"
#include "tools/page/html.h"

namespace octile::tools {
namespace {

// A column of a table: the name that charts know it by, its heading, and how a row fills its cell.
template <typename Row>
struct Column {
  const char* key;
  const char* heading;
  bool is_number;
  std::function<std::string(const Row&)> cell;  // HTML; empty: the row has no value
};

std::string number(std::optional<double> value, int digits) {
  if (!value || !std::isfinite(*value)) return {};
  std::string shown = fmt::format("{:.{}f}", *value, digits);
  double read = 0;
  std::from_chars(shown.data(), shown.data() + shown.size(), read);
  if (read == *value) return shown;
  return fmt::format("<data value={}>{}</data>", *value, shown);
}
std::string scientific(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return {};
  return fmt::format("<data value={}>{:.2g}</data>", *value, *value);
}
std::string whole(std::optional<std::int64_t> value) {
  return value ? std::to_string(*value) : std::string();
}

// End tags of rows and cells are left out, as HTML allows: a page has thousands.
template <typename Row>
std::string table(const std::vector<Row>& rows, const std::vector<Column<Row>>& columns,
                  const char* id, const char* caption) {
  std::vector<bool> shown;
  std::string head, body;
  for (const Column<Row>& column : columns) {
    shown.push_back(
        std::ranges::any_of(rows, [&](const Row& row) { return !column.cell(row).empty(); }));
    if (!shown.back()) continue;
    head += fmt::format(
        "<th scope=\"col\" data-key=\"{}\"{} aria-sort=\"none\"><button "
        "type=\"button\">{}</button></th>",
        column.key, column.is_number ? " class=\"n\"" : "", column.heading);
  }
  for (const Row& row : rows) {
    body += "<tr>";
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!shown[i]) continue;
      body += columns[i].is_number ? "<td class=n>" : "<td>";
      body += columns[i].cell(row);
    }
    body += "\n";
  }
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"Table: {}\"><table "
      "id=\"{}\">"
      "<caption>{}</caption><thead><tr>{}</tr></thead><tbody>\n{}</tbody></table></div>\n",
      caption, id, caption, head, body);
}

double fp8_us(const LayerVerdict& layer) { return layer.fp8_gemms.median + layer.quantize.median; }

std::string share(double bf16, double fp8) {
  return fp8 > 0 ? number(bf16 / fp8, 2) : std::string();
}

std::string gigabytes(double bytes) { return bytes > 0 ? number(bytes * 1e-9, 2) : std::string(); }

// An estimate is marked, because a reader may take it for a measurement.
std::string microseconds(const Microseconds& time) {
  if (time.source == TimeSource::kMeasured || !std::isfinite(time.median))
    return number(time.median, 2);
  return fmt::format("<data value={}>{:.2f}</data> <small>{}</small>", time.median, time.median,
                     name_of(time.source));
}

// The sum of a layer's times is marked if a part of it is.
std::string fp8_cell(const LayerVerdict& layer) {
  return microseconds(
      {.median = fp8_us(layer), .source = std::max(layer.fp8_gemms.source, layer.quantize.source)});
}

// Several modules may read a problem: their number precedes their names.
std::string readers(const std::string& layers) {
  const auto commas = std::ranges::count(layers, ',');
  return (commas == 0 ? std::string() : fmt::format("{} modules: ", commas + 1)) +
         html_text(layers);
}

std::string estimated_text(const Sources& by) { return by.are_measured() ? "" : "estimated: "; }

std::string verdict_cell(Verdict verdict) {
  return fmt::format("<span class=\"{}\">{}</span>", name_of(verdict), name_of(verdict));
}

}  // namespace

std::string rows_table(const std::vector<PageRow>& rows) {
  using Of = const PageRow&;
  return table<PageRow>(
      rows,
      {{"problem", "problem", false, [](Of row) { return html_text(row.label); }},
       {"tokens", "tokens", true, [](Of row) { return whole(row.tokens); }},
       {"us", "us", true, [](Of row) { return number(row.us, 2); }},
       {"default_us", "default us", true, [](Of row) { return number(row.default_us, 2); }},
       {"low_us", "low us", true, [](Of row) { return number(row.low_us, 2); }},
       {"high_us", "high us", true, [](Of row) { return number(row.high_us, 2); }},
       {"gain", "gain", true, [](Of row) { return number(row.gain, 3); }},
       {"bf16_us", "BF16 us", true, [](Of row) { return number(row.bf16_us, 2); }},
       {"peer", "beside", false, [](Of row) { return html_text(row.peer); }},
       {"peer_us", "its us", true, [](Of row) { return number(row.peer_us, 2); }},
       {"predicted_us", "predicted us", true, [](Of row) { return number(row.predicted_us, 2); }},
       {"promote", "promoted every", false, [](Of row) { return html_text(row.promote); }},
       {"error", "error", true, [](Of row) { return scientific(row.error); }},
       {"intensity", "FLOP/byte", true, [](Of row) { return number(row.intensity, 1); }},
       {"tflops", "TFLOP/s", true, [](Of row) { return number(row.tflops, 1); }},
       {"tbps", "TB/s", true, [](Of row) { return number(row.tbps, 2); }},
       {"kind", "kind", false, [](Of row) { return html_text(row.kind); }},
       {"config", "configuration", false, [](Of row) { return html_text(row.config); }},
       {"layer", "read by", false, [](Of row) { return readers(row.layer); }}},
      "rows", "Measurements");
}

std::string layers_table(const std::vector<LayerVerdict>& layers) {
  using Of = const LayerVerdict&;
  return table<LayerVerdict>(
      layers,
      {{"layer", "layer", false, [](Of row) { return html_text(row.layer); }},
       {"mode", "mode", false, [](Of row) { return std::string(name_of(row.mode)); }},
       {"tokens", "tokens", true, [](Of row) { return whole(row.tokens); }},
       {"verdict", "verdict", false, [](Of row) { return verdict_cell(row.verdict); }},
       {"by", "by", false, [](Of row) { return std::string(name_of(source_of(row))); }},
       {"gain", "BF16 / FP8", true, [](Of row) { return number(row.gain, 2); }},
       {"gain_low", "low", true, [](Of row) { return number(row.gain_low, 2); }},
       {"gain_high", "high", true, [](Of row) { return number(row.gain_high, 2); }},
       {"bf16", "BF16 us", true, [](Of row) { return microseconds(row.bf16); }},
       {"fp8", "FP8 us", true, [](Of row) { return fp8_cell(row); }},
       {"gemms", "of it GEMMs", true, [](Of row) { return microseconds(row.fp8_gemms); }},
       {"quantize", "quantising", true, [](Of row) { return microseconds(row.quantize); }},
       {"fused", "if fused", true, [](Of row) { return number(row.fused_quantize, 2); }},
       {"copies", "copies", true, [](Of row) { return whole(row.copies); }},
       {"n", "n", true, [](Of row) { return whole(row.n); }},
       {"k", "k", true, [](Of row) { return whole(row.k); }},
       {"groups", "groups", true,
        [](Of row) { return row.groups > 0 ? whole(row.groups) : std::string(); }},
       {"saved", "saved us", true, [](Of row) { return number(row.saved_us, 1); }}},
      "layers", "Layers of the model");
}

std::string totals_table(const std::vector<ModelVerdict>& totals) {
  using Of = const ModelVerdict&;
  return table<ModelVerdict>(
      totals,
      {{"mode", "mode", false, [](Of row) { return std::string(name_of(row.mode)); }},
       {"tokens", "tokens", true, [](Of row) { return whole(row.tokens); }},
       {"by", "by", false, [](Of row) { return estimated_text(row.by) + row.by.text(); }},
       {"bf16_us", "BF16 us", true, [](Of row) { return number(row.bf16_us, 1); }},
       {"fp8_us", "FP8 us", true, [](Of row) { return number(row.fp8_us, 1); }},
       {"gain", "BF16 / FP8", true, [](Of row) { return share(row.bf16_us, row.fp8_us); }},
       {"best_mix_us", "best mix us", true, [](Of row) { return number(row.best_mix_us, 1); }},
       {"mix_gain", "BF16 / mix", true, [](Of row) { return share(row.bf16_us, row.best_mix_us); }},
       {"eager_gain", "call by call", true,
        [](Of row) { return share(row.eager_bf16_us, row.eager_fp8_us); }},
       {"eager_mix_gain", "its mix", true,
        [](Of row) { return share(row.eager_bf16_us, row.eager_best_mix_us); }},
       {"weights", "weights GB", true, [](Of row) { return gigabytes(row.weight_bytes_fp8); }},
       {"weights_bf16", "in BF16", true, [](Of row) { return gigabytes(row.weight_bytes_bf16); }},
       {"weight_copies", "of it copies", true,
        [](Of row) { return gigabytes(row.copy_bytes_fp8); }},
       {"kept", "kept GB", true, [](Of row) { return gigabytes(row.kept_bytes_fp8); }},
       {"kept_bf16", "in BF16", true, [](Of row) { return gigabytes(row.kept_bytes_bf16); }},
       {"mix", "FP8 in the mix", false,
        [](Of row) { return html_text(fmt::format("{}", fmt::join(row.mix, ", "))); }}},
      "totals", "The model's linear layers");
}

}  // namespace octile::tools
