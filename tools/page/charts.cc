#include "tools/page/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace octile::tools {
namespace {

// Returns the value of a text of this file.
Json of_text(std::string_view text) { return parse_json(text, 16).value(); }

template <typename Has>
bool any(const std::vector<PageRow>& rows, Has has) {
  return std::ranges::any_of(rows, has);
}
bool has_rate(const PageRow& row) { return row.tflops.has_value(); }
bool has_gain(const PageRow& row) { return row.gain && row.default_us; }
bool has_error(const PageRow& row) { return row.error.has_value(); }
bool has_prediction(const PageRow& row) { return row.predicted_us.has_value(); }

Json tooltip(const std::vector<std::pair<const char*, const char*>>& fields) {
  Json all = Json::array();
  for (const auto& [field, title] : fields) all.push_back({{"field", field}, {"title", title}});
  return all;
}

// Points of 128 tokens at most stand apart: memory bounds them.
Json token_colour() {
  return of_text(R"json({"field": "size", "type": "nominal", "title": null,
    "scale": {"domain": ["up to 128 tokens", "more tokens"],
              "range": ["var(--second)", "var(--accent)"]},
    "legend": {"orient": "top"}
})json");
}
Json token_classes() {
  return of_text(
      R"json([{"calculate": "datum.tokens <= 128 ? 'up to 128 tokens' : 'more tokens'",
                          "as": "size"}])json");
}

Json roof_layers(const DeviceSpec& device, double least, double most) {
  const double knee = device.fp8_tflops / device.dram_tbps;
  const double begin = std::min(least, knee / 4), end = std::max(most, knee * 4);
  Json lines = Json::array();
  for (const double x : {begin, knee, end})
    lines.push_back({{"x", x}, {"y", std::min(x * device.dram_tbps, device.fp8_tflops)}});
  Json line = of_text(R"json({"mark": {"type": "line", "color": "var(--quiet)", "aria": false
}
, "encoding" : {
  "x" : {"field" : "x", "type" : "quantitative"}, "y" : {"field" : "y", "type" : "quantitative"}
}
})json");
  line.set("data", {{"values", std::move(lines)}});
  Json text = of_text(R"json({"mark": {"type": "text", "align": "right", "dy": -8, "aria": false},
    "encoding": {"x": {"field": "x", "type": "quantitative"},
                 "y": {"field": "y", "type": "quantitative"},
                 "text": {"field": "text", "type": "nominal"}}})json");
  Json words = Json::array();
  words.push_back({{"x", end},
                   {"y", device.fp8_tflops},
                   {"text", fmt::format("{:.0f} TFLOP/s", device.fp8_tflops)}});
  words.push_back({{"x", knee / 2.2},
                   {"y", knee / 2.2 * device.dram_tbps},
                   {"text", fmt::format("{:.2f} TB/s", device.dram_tbps)}});
  text.set("data", {{"values", std::move(words)}});
  return Json::array({std::move(line), std::move(text)});
}

Chart roofline(const PageContent& content, const std::vector<PageRow>& rows) {
  double least = 1e30, most = 0;
  for (const PageRow& row : rows) {
    if (!row.intensity) continue;
    least = std::min(least, *row.intensity);
    most = std::max(most, *row.intensity);
  }
  Json points = of_text(R"json({"data": {"name": "rows"},
    "mark": {"type": "point", "filled": true, "size": 26, "opacity": 0.75, "aria": false},
    "encoding": {
      "x": {"field": "intensity", "type": "quantitative", "title": "FLOP per byte",
            "scale": {"type": "log", "nice": false}},
      "y": {"field": "tflops", "type": "quantitative", "title": "TFLOP/s",
            "scale": {"type": "log", "nice": false}}}})json");
  points.add("transform", token_classes().push_back({{"filter", "datum.tflops > 0"}}));
  points.at("encoding")
      .add("color", token_colour())
      .add("tooltip", tooltip({{"layer", "layer"},
                               {"problem", "problem"},
                               {"tokens", "tokens"},
                               {"us", "us"},
                               {"tflops", "TFLOP/s"}}));
  Json layers = Json::array({std::move(points)});
  std::string caption = "GEMMs by operations of a byte that they have to move.";
  if (content.device) {
    for (const Json& layer : roof_layers(*content.device, least, most)) layers.push_back(layer);
    caption +=
        content.device->is_measured
            ? fmt::format(
                  " The lines are the memory speed measured on {} and the rate of "
                  "its datasheet.",
                  content.device->full_name)
            : fmt::format(" The lines are the datasheet's of {}.", content.device->full_name);
  } else {
    caption += " No description of this card is known, so it has no lines.";
  }
  return {"roofline", "Roofline", caption, {{"height", 320}, {"layer", std::move(layers)}}};
}

Chart before_after(const std::vector<PageRow>& rows) {
  constexpr int kMost = 12;
  const auto all = std::ranges::count_if(rows, has_gain);
  Json chart = of_text(R"json({"data": {"name": "rows"},
    "transform": [
      {"filter": "datum.gain > 0 && datum.default_us > 0"},
      {"window": [{"op": "row_number", "as": "place"}],
       "sort": [{"field": "gain", "order": "descending"}]},
      {"filter": "datum.place <= 12"},
      {"calculate": "datum.tokens + ': ' + (datum.layer ? datum.layer : datum.problem)",
       "as": "name"},
      {"fold": ["default_us", "us"], "as": ["which", "time"]},
      {"calculate": "datum.which == 'us' ? 'tuned' : 'default'", "as": "series"},
      {"calculate": "100 * datum.time / datum.default_us", "as": "share"}],
    "mark": {"type": "bar", "aria": false},
    "encoding": {
      "y": {"field": "name", "type": "nominal", "title": null,
            "sort": {"field": "gain", "order": "descending"},
            "axis": {"ticks": false}, "scale": {"paddingInner": 0.3}},
      "yOffset": {"field": "series", "scale": {"domain": ["default", "tuned"]}},
      "x": {"field": "share", "type": "quantitative", "title": "% of the default's time"},
      "color": {"field": "series", "type": "nominal", "title": null,
                "scale": {"domain": ["default", "tuned"],
                          "range": ["var(--second)", "var(--accent)"]
}
, "legend" : {"orient" : "top"}
}
}
})json");
  chart.at("encoding")
      .add("tooltip", tooltip({{"layer", "layer"},
                               {"problem", "problem"},
                               {"tokens", "tokens"},
                               {"default_us", "default us"},
                               {"us", "tuned us"},
                               {"gain", "gain"}}));
  chart.set("height", 24 * std::min<std::int64_t>(all, kMost));
  return {"gains", "Default and tuned",
          all > kMost ? fmt::format("The {} largest gains of {}; the table has all.", kMost, all)
                      : "The gain of tuning over the default configuration.",
          std::move(chart)};
}

Chart predictions() {
  Json chart = of_text(R"json({"height": 280, "layer": [
    {"data": {"name": "rows"},
     "transform": [{"filter": "datum.predicted_us > 0"},
                   {"aggregate": [{"op": "min", "field": "us", "as": "low"},
                                  {"op": "max", "field": "us", "as": "high"}]},
                   {"fold": ["low", "high"], "as": ["end", "time"]}],
     "mark": {"type": "line", "color": "var(--quiet)", "aria": false},
     "encoding": {
  "x" : {"field" : "time", "type" : "quantitative"},
        "y" : {"field" : "time", "type" : "quantitative"}
}
},
    {"data": {"name": "rows"},
     "mark": {"type": "point", "filled": true, "size": 26, "opacity": 0.75, "aria": false},
     "encoding": {
       "x": {"field": "us", "type": "quantitative", "title": "measured us",
             "scale": {"type": "log", "nice": false}},
       "y": {"field": "predicted_us", "type": "quantitative", "title": "predicted us",
             "scale": {"type": "log", "nice": false}}}}]
})json");
  Json& points = chart.at("layer").at(1);
  points.add("transform", token_classes().push_back({{"filter", "datum.predicted_us > 0"}}));
  points.at("encoding")
      .add("color", token_colour())
      .add("tooltip", tooltip({{"layer", "layer"},
                               {"problem", "problem"},
                               {"tokens", "tokens"},
                               {"us", "measured us"},
                               {"predicted_us", "predicted us"}}));
  return {"predictions", "Predicted and measured",
          "The cost model's time of each configuration that was timed; on the line both are equal.",
          std::move(chart)};
}

// Intervals of one problem at one token count lie in one line.
Chart promotions() {
  Json chart = of_text(R"json({"height": 280, "data": {"name": "rows"},
    "transform": [
      {"filter": "isValid(datum.error) && datum.error > 0 && datum.us > 0"},
      {"calculate": "datum.tokens + ': ' + (datum.layer ? datum.layer : datum.problem)",
       "as": "name"},
      {"calculate": "datum.tokens + ': ' + replace(datum.problem, / promote=\\w+/, '')",
       "as": "question"}],
    "encoding": {
      "x": {"field": "us", "type": "quantitative", "title": "us",
            "scale": {"type": "log", "nice": false}},
      "y": {"field": "error", "type": "quantitative",
            "title": "error, share of the sum of magnitudes", "scale": {"type": "log"}},
      "detail": {"field": "question", "type": "nominal"}},
    "layer": [
      {"mark": {"type": "line", "color": "var(--grid)", "aria": false},
       "encoding": {"order": {"field": "error", "type": "quantitative"}}},
      {"mark": {"type": "point", "filled": true, "size": 50, "aria": false},
       "encoding": {
         "shape": {"field": "promote", "type": "nominal", "title": "promoted every",
                   "legend": {"orient": "top"}},
         "color": {"field": "promote", "type": "nominal", "title": "promoted every",
                   "scale": {"range": ["var(--accent)", "var(--second)", "var(--third)",
                                       "var(--quiet)", "var(--text)"]},
                   "legend": {"orient": "top"}}}}]
})json");
  Json& points = chart.at("layer").at(1);
  points.at("encoding")
      .add("tooltip",
           tooltip(
               {{"name", "of"}, {"promote", "promoted every"}, {"us", "us"}, {"error", "error"}}));
  return {"promotion", "Error and speed",
          "The cost of each promotion interval in time and in accuracy; the points of one problem "
          "at one token count are joined.",
          std::move(chart)};
}

Chart heatmap(Mode mode, std::size_t layers, const Sources& by) {
  Json chart = of_text(R"json({"data": {"name": "layers"},
    "encoding": {
      "x": {"field": "tokens", "type": "ordinal", "title": "tokens",
            "axis": {"labelAngle": 0, "ticks": false}},
      "y": {"field": "layer", "type": "nominal", "title": null, "sort": null,
            "axis": {"ticks": false}}},
    "layer": [
      {"mark": {"type": "rect", "aria": false},
       "encoding": {"color": {"field": "gain", "type": "quantitative", "title": "BF16 / FP8",
         "scale": {"type": "threshold", "domain": [0.8, 1.0, 1.25, 1.5],
                   "range": ["var(--heat-0)", "var(--heat-1)", "var(--heat-2)", "var(--heat-3)",
                             "var(--heat-4)"]},
         "legend": {"orient": "top", "gradientLength": 180, "format": ".2f"}
}
}
},
      {"mark": {"type": "text", "fontSize": 10, "aria": false,
                "opacity": {"expr": "bandwidth('x') > 27 ? 1 : 0"}},
       "encoding": {"text": {"field": "gain", "type": "quantitative", "format": ".2f"},
         "color": {"condition": {"test": "datum.gain < 0.8 || datum.gain >= 1.5",
                                 "value": "var(--on-heat)"}, "value": "var(--text)"}}}]
})json");
  chart.add("transform", Json::array().push_back(
                             {{"filter", fmt::format("datum.mode == '{}'", name_of(mode))}}));
  Json& cells = chart.at("layer").at(0);
  cells.at("encoding")
      .add("tooltip", tooltip({{"layer", "layer"},
                               {"tokens", "tokens"},
                               {"gain", "BF16 / FP8"},
                               {"verdict", "verdict"}}));
  chart.set("height", 24 * layers);
  const std::string how = by.are_measured()
                              ? fmt::format("FP8 pays from {} on.", kLeastGain)
                              : fmt::format(
                                    "Estimated: {}. FP8 pays from {} on as measured, and "
                                    "from {} as estimated.",
                                    by.text(), kLeastGain, kEstimatePays);
  return {fmt::format("heat-{}", name_of(mode)),
          fmt::format("Does FP8 pay{}: {}", by.are_measured() ? "" : ", estimated", name_of(mode)),
          "BF16's time over FP8's, quantising included. " + how, std::move(chart)};
}

std::vector<Chart> heatmaps(const PageContent& content) {
  std::vector<Chart> charts;
  for (const Mode mode : {Mode::kDecode, Mode::kPrefill, Mode::kTraining}) {
    std::set<std::string> layers;
    Sources by;
    for (const LayerVerdict& layer : content.layers) {
      if (layer.mode != mode) continue;
      layers.insert(layer.layer);
      by.add(layer);
    }
    if (!layers.empty()) charts.push_back(heatmap(mode, layers.size(), by));
  }
  return charts;
}

Chart memory(const PageContent& content) {
  Json values = Json::array();
  std::set<std::string> seen;
  const auto add = [&](const std::string& what, double bf16, double fp8) {
    if (fp8 <= 0 || !seen.insert(what).second) return;
    values.push_back({{"what", what}, {"type", "BF16"}, {"gb", bf16 / 1e9}});
    values.push_back({{"what", what}, {"type", "FP8"}, {"gb", fp8 / 1e9}});
  };
  for (const ModelVerdict& total : content.totals) {
    add(fmt::format("weights, {}", name_of(total.mode)), total.weight_bytes_bf16,
        total.weight_bytes_fp8);
    if (total.copy_bytes_fp8 > 0)
      add(fmt::format("of it FP8 copies, {}", name_of(total.mode)), 0, total.copy_bytes_fp8);
    add(fmt::format("kept for backward, {} tokens", total.tokens), total.kept_bytes_bf16,
        total.kept_bytes_fp8);
  }
  Json chart = of_text(R"json({
    "mark": {"type": "bar", "aria": false},
    "encoding": {
      "y": {"field": "what", "type": "nominal", "title": null, "sort": null,
            "axis": {"ticks": false}, "scale": {"paddingInner": 0.3}},
      "yOffset": {"field": "type"},
      "x": {"field": "gb", "type": "quantitative", "title": "GB of one rank"},
      "color": {"field": "type", "type": "nominal", "title": null,
                "scale": {"domain": ["BF16", "FP8"], "range": ["var(--second)", "var(--accent)"]
}
, "legend" : {"orient" : "top"}
}
}
})json");
  chart.at("encoding").add("tooltip", tooltip({{"what", "what"}, {"type", "type"}, {"gb", "GB"}}));
  chart.set("height", 13 * values.size());
  chart.set("data", {{"values", std::move(values)}});
  return {"memory", "Memory",
          "Bytes of the linear layers' weights, and of the tensors that backward keeps.",
          std::move(chart)};
}

}  // namespace

std::vector<Chart> charts_of(const PageContent& content, const std::vector<PageRow>& rows) {
  std::vector<Chart> charts = heatmaps(content);
  if (any(rows, has_gain)) charts.push_back(before_after(rows));
  if (any(rows, has_rate)) charts.push_back(roofline(content, rows));
  if (any(rows, has_prediction)) charts.push_back(predictions());
  if (any(rows, has_error)) charts.push_back(promotions());
  if (!content.totals.empty()) charts.push_back(memory(content));
  return charts;
}

std::vector<std::string> missing_charts(const PageContent& content,
                                        const std::vector<PageRow>& rows) {
  std::vector<std::string> sentences;
  if (content.layers.empty()) {
    sentences.emplace_back(
        "Whether FP8 pays is not shown: these measurements have no verdict on the layers of a "
        "model.");
  }
  if (!any(rows, has_gain))
    sentences.emplace_back(
        "Default and tuned times are not shown: no record has a default's time.");
  if (!any(rows, has_rate)) sentences.emplace_back("There is no roofline: no record is of a GEMM.");
  if (!any(rows, has_prediction)) {
    sentences.emplace_back(
        "Predictions are not shown: the cost model knows neither the card nor the configurations.");
  }
  if (!any(rows, has_error)) {
    sentences.emplace_back(
        "Error against speed is not shown: no record measured the error of a promotion interval. "
        "octile tune --max-error does.");
  }
  if (content.totals.empty())
    sentences.emplace_back("Memory is not shown: it needs the verdict on a model.");
  return sentences;
}

Json chart_config() {
  return of_text(R"json({
    "background": "transparent", "font": "-apple-system, Segoe UI, Noto Sans, Helvetica, Arial, sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {"labelOverlap": true, "labelColor": "var(--text)", "titleColor": "var(--text)",
             "gridColor": "var(--grid)", "domainColor": "var(--grid)", "tickColor": "var(--grid)",
             "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 12,
             "tickCount": 6, "gridOpacity": 0.6},
    "legend": {"labelColor": "var(--text)", "titleColor": "var(--text)", "labelFontSize": 12,
               "titleFontSize": 12, "titleFontWeight": "normal", "labelOverlap": true},
    "mark": {"color": "var(--accent)"}, "point": {"color": "var(--accent)"},
    "text": {"color": "var(--text)", "fontSize": 11}
})json");
}

}  // namespace octile::tools
