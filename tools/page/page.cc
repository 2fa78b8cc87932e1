#include "tools/page/page.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "tools/command.h"
#include "tools/common/output.h"
#include "tools/common/output_file.h"
#include "tools/page/assets.h"
#include "tools/page/charts.h"
#include "tools/page/html.h"
#include "tools/page/summary.h"
#include "tools/page/tables.h"

namespace octile::tools {
namespace {

constexpr const char* kNoLibrary =
    "This build of octile was made without the library that draws charts, so the page has its "
    "tables alone. The packages and the Python wheel have it.";

std::string paragraph(std::string_view text, std::string_view attributes = {}) {
  return fmt::format("<p{}>{}</p>\n", attributes, html_text(text));
}

std::string charts_html(const std::vector<Chart>& charts, bool has_library) {
  if (charts.empty()) return {};
  std::string out = "<section aria-labelledby=\"charts\"><h2 id=\"charts\">Charts</h2>\n";
  if (!has_library) return out + paragraph(kNoLibrary, " id=\"no-charts\"") + "</section>\n";
  out +=
      "<noscript><p>Charts need JavaScript. The tables have all numbers.</p></noscript>\n"
      "<div class=\"charts\">\n";
  for (const Chart& chart : charts) {
    out += fmt::format(
        "<figure><h3>{}</h3><div class=\"chart\" id=\"chart-{}\" role=\"img\" aria-label=\"{}\">"
        "</div><figcaption>{}</figcaption></figure>\n",
        html_text(chart.heading), chart.id,
        html_text(chart.heading + ". The tables have the "
                                  "numbers."),
        html_text(chart.caption));
  }
  return out + "</div></section>\n";
}

std::string section(const char* id, const char* heading, const std::string& body) {
  return fmt::format("<section aria-labelledby=\"{}\"><h2 id=\"{}\">{}</h2>\n{}</section>\n", id,
                     id, heading, body);
}

std::string verdicts_html(const PageContent& content) {
  if (content.layers.empty()) return {};
  Sources by;
  for (const LayerVerdict& layer : content.layers) by.add(layer);
  std::vector<ModelVerdict> totals = content.totals;
  std::erase_if(totals, [](const ModelVerdict& total) { return !total.too_large.empty(); });
  const std::string body = totals.empty() ? "" : totals_table(totals);
  return section("verdict", by.are_measured() ? "Does FP8 pay" : "Does FP8 pay, estimated",
                 body + layers_table(content.layers));
}

std::string measurements_html(const std::vector<PageRow>& rows) {
  constexpr const char* kFilter =
      "<form class=\"filter\" id=\"filter\" hidden><label for=\"words\">Rows that contain</label> "
      "<input id=\"words\" type=\"search\" autocomplete=\"off\" spellcheck=\"false\"> "
      "<output id=\"count\" for=\"words\" aria-live=\"polite\"></output></form>\n";
  return section("measurements", "Measurements", kFilter + rows_table(rows));
}

std::string method_html(const PageContent& content) {
  std::string body = "<dl>\n";
  for (const auto& [fact, value] : method(content))
    body += fmt::format("<dt>{}</dt><dd>{}</dd>\n", html_text(fact), html_text(value));
  body += "</dl>\n";
  return section("method", "Method and versions", body);
}

std::string compressed(std::string_view text) {
  constexpr int kLevel = 19;
  std::string frame(ZSTD_compressBound(text.size()), '\0');
  const std::size_t size =
      ZSTD_compress(frame.data(), frame.size(), text.data(), text.size(), kLevel);
  if (ZSTD_isError(size) != 0) throw std::bad_alloc();
  frame.resize(size);
  return frame;
}

std::string records_html(const PageContent& content) {
  std::string text;
  for (const cache::TuningRecord& record : content.tuned) text += to_json_line(record) + "\n";
  for (const Record& record : content.measured) text += to_json_line(record) + "\n";
  const bool is_plain = text.size() <= kMostPlainRecords;
  return section(
      "records", "Records",
      fmt::format("<p><a id=\"download\" download=\"records.jsonl{}\" href=\"data:{};base64,{}\">"
                  "Download the records</a>: JSON, one a line{}. <code>octile report</code> reads "
                  "them.</p>\n",
                  is_plain ? "" : ".zst", is_plain ? "application/x-ndjson" : "application/zstd",
                  base64(is_plain ? text : compressed(text)),
                  is_plain ? "" : ", compressed by zstd"));
}

std::string licences_html(bool has_library) {
  if (!has_library) return {};
  const std::string notices = page_file("notices.txt");
  std::string lines;
  for (std::size_t begin = 0; begin < notices.size();) {
    const std::size_t end = std::min(notices.find('\n', begin), notices.size());
    lines += html_text(std::string_view(notices).substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return fmt::format(
      "<section><details><summary>Licences of the libraries that draw the charts</summary><pre "
      "tabindex=\"0\">{}</pre></details></section>\n",
      lines);
}

std::string specifications(const std::vector<Chart>& charts) {
  Json all = Json::object();
  for (const Chart& chart : charts) all.add(chart.id, chart.specification);
  return json_in_script({{"config", chart_config()}, {"charts", std::move(all)}});
}

std::string head_html(const PageContent& content, const std::string& style,
                      const std::string& scripts) {
  const std::string title = html_text(page_title(content));
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; "
      "form-action 'none'; script-src {}; style-src {}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n"
      "<style>{}</style></head>\n<body><header><h1>{}</h1></header>\n<main>\n",
      scripts, csp_hash(style), title, style, title);
}

}  // namespace

std::string page_html(const PageContent& content, std::string_view chart_library) {
  const std::vector<PageRow> rows = rows_of(content);
  const std::vector<Chart> charts = charts_of(content, rows);
  const bool has_library = !chart_library.empty();
  const std::string style = page_file("page.css"), script = page_file("page.js");
  std::string allowed = csp_hash(script);
  if (has_library) allowed += " " + csp_hash(chart_library);
  std::string out = head_html(content, style, allowed);
  out += paragraph(summary(content, rows), " class=\"summary\"");
  for (const std::string& sentence : missing_charts(content, rows)) out += paragraph(sentence);
  out += charts_html(charts, has_library) + verdicts_html(content) + measurements_html(rows);
  out += method_html(content) + records_html(content);
  out += licences_html(has_library) + "</main>\n";
  if (has_library) {
    out += fmt::format("<script type=\"application/json\" id=\"specifications\">{}</script>\n",
                       specifications(charts));
    out += fmt::format("<script>{}</script>\n", chart_library);
  }
  return out + fmt::format("<script>{}</script>\n</body></html>\n", script);
}

Status write_page(const std::string& path, const PageContent& content) {
  if (rows_of(content).empty() && content.layers.empty()) {
    return refuse(
        "there is nothing to report: no record is a tuning decision or a right measurement in "
        "microseconds");
  }
  return write_output_file(path, page_html(content, page_file(kChartLibrary)));
}

void add_report_option(CLI::App& app, std::string& path) {
  add_option(app, "--report", path, "a page of HTML to write about the results");
}

Status check_report_file(const std::string& path) {
  return path.empty() ? Status() : check_output_file(path);
}

namespace {

std::string recipe_of(const WorkOptions& work) {
  return work.problem.recipe_option.is_given() ? work.problem.recipe : "auto";
}

PageContent content_for(const WorkOptions& work, const DeviceSpec& device) {
  PageContent content;
  content.models = work.model.models;
  content.device = device;
  content.device_name = device.full_name;
  content.names = layer_names(work.model, recipe_of(work)).value_or(LayerNames());
  return content;
}

Status write_with_verdicts(const std::string& path, const WorkOptions& work, PageContent content) {
  Status judged = add_verdicts(content, work.model, recipe_of(work), work.tokens);
  return judged ? write_page(path, content) : judged;
}

}  // namespace

Status report_tuning(const std::string& path, const WorkOptions& work, const DeviceSpec& device,
                     const std::vector<tuner::Decision>& decisions) {
  if (path.empty()) return {};
  PageContent content = content_for(work, device);
  for (const tuner::Decision& decision : decisions) {
    if (decision.decided()) content.tuned.push_back(decision.record);
  }
  if (!content.tuned.empty()) return write_with_verdicts(path, work, std::move(content));
  print_stderr("octile: {} is not written, because nothing is decided\n", path);
  return {};
}

Status report_measurements(const std::string& path, const WorkOptions& work,
                           const DeviceSpec& device, std::vector<Record> measured) {
  if (path.empty()) return {};
  PageContent content = content_for(work, device);
  content.measured = std::move(measured);
  return write_with_verdicts(path, work, std::move(content));
}

}  // namespace octile::tools
