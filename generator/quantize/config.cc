#include "generator/quantize/config.h"

#include <fmt/format.h>

#include "generator/core/text_fields.h"
#include "generator/quantize/fused_source.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

bool parse_field(std::string_view name, std::string_view value, QuantizeConfig& c) {
  if (name == "threads") return parse_int(value, c.threads);
  if (name == "per_sm") return parse_int(value, c.blocks_per_sm);
  if (name == "raster") {
    c.rows_fastest = value == "rows";
    return value == "rows" || value == "cols";
  }
  if (name == "lookup") {
    c.looks_up = value == "1";
    return value == "0" || value == "1";
  }
  if (name == "scales") {
    c.orders_scales = value == "ordered";
    return value == "ordered" || value == "direct";
  }
  if (name == "halves") {
    c.halves_together = value == "together";
    return value == "together" || value == "apart";
  }
  if (name == "copies") {
    c.copies_apart = value == "apart";
    return value == "together" || value == "apart";
  }
  if (name == "cluster") return parse_int(value, c.cluster);
  return name == "tile" && parse_extents(value, {&c.tile_rows, &c.tile_cols});
}

}  // namespace

std::vector<Companion> companions_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  std::vector<Companion> all;
  const bool norms = source_shape(p.source).finds_rms;
  if (norms && template_of(p) != QuantizeTemplate::kNormRows) all.push_back(Companion::kRowNorm);
  if (first_pass_of(p, c) != FirstPass::kNone) all.push_back(Companion::kFirstPass);
  if (p.policy == ScalePolicy::kDelayed) all.push_back(Companion::kScaleUpdate);
  if (p.bias_gradient) all.push_back(Companion::kBiasSum);
  if (c.orders_scales) all.push_back(Companion::kScaleOrder);
  if (p.skip_unchanged) all.push_back(Companion::kFingerprint);
  return all;
}

bool holds_few_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  return template_of(p) == QuantizeTemplate::kCtaTile && c.tile_rows < kScaleBlock;
}

FirstPass first_pass_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  return c.cluster > 0 ? FirstPass::kNone : first_pass_of(p);
}

std::string to_text(const QuantizeConfig& c) {
  return fmt::format("tile={}x{} threads={} per_sm={}{}{}{}{}{}{}", c.tile_rows, c.tile_cols,
                     c.threads, c.blocks_per_sm, c.rows_fastest ? " raster=rows" : "",
                     c.looks_up ? " lookup=1" : "", c.orders_scales ? " scales=ordered" : "",
                     c.halves_together ? " halves=together" : "",
                     c.copies_apart ? " copies=apart" : "",
                     c.cluster > 0 ? fmt::format(" cluster={}", c.cluster) : "");
}

Result<QuantizeConfig> parse_quantize_config(std::string_view text) {
  QuantizeConfig config;
  const Status ok = parse_fields(
      text, [&](auto name, auto value) { return parse_field(name, value, config); },
      "quantise configuration",
      "tile=ROWSxCOLS, threads=N, per_sm=N, raster=rows|cols, lookup=0|1, "
      "scales=direct|ordered, halves=apart|together, copies=together|apart, cluster=N");
  if (!ok) return tl::unexpected<Error>(ok.error());
  return config;
}

}  // namespace octile
