#include "tools/verdict/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tools/common/output.h"
#include "tools/common/terminal.h"

namespace octile::tools {
namespace {

std::string us_text(const Microseconds& us) {
  const char* mark = us.source == TimeSource::kMeasured ? ""
                     : us.source == TimeSource::kNear   ? " n"
                                                        : " e";
  return fmt::format("{:.2f}{}", us.median, mark);
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes * 1e-9);
  return fmt::format("{:.1f} MB", bytes * 1e-6);
}

}  // namespace

void print_verdicts(const Verdicts& verdicts, std::optional<double> step_ms, bool wide) {
  print_table(verdicts_table(verdicts.layers), wide);
  print_stdout("\n{}\n", wrapped(verdicts_legend(), line_width(), 2));
  for (const ModelVerdict& sum : verdicts.sums) {
    print_stdout("\n{}\n", wrapped(model_text(sum, step_ms), line_width(), 2));
  }
}

Json to_json(const Verdicts& verdicts, std::optional<double> step_ms) {
  Json layers = Json::array(), sums = Json::array();
  for (const JudgedLayer& judged : verdicts.layers) layers.push_back(to_json(judged));
  for (const ModelVerdict& sum : verdicts.sums) {
    Json json = to_json(sum);
    if (step_ms) json.add("step_ms", *step_ms).add("step_ms_best_mix", step_of_mix(sum, *step_ms));
    sums.push_back(std::move(json));
  }
  return {{"layers", std::move(layers)}, {"sums", std::move(sums)}};
}

TextTable verdicts_table(const std::vector<JudgedLayer>& layers) {
  TextTable table({"<layer", "<mode", "tokens", "copies", "BF16 us", "FP8 us", "quantise us",
                   "fused us", "gain", "95 %", "eager", "saved us", "<verdict", "<by"});
  table.cut("layer", 22)
      .leave_out({"copies", "fused us", "eager", "95 %", "saved us", "quantise us"});
  for (const JudgedLayer& judged : layers) {
    const LayerVerdict& v = judged.verdict;
    table.add_row({v.layer, name_of(v.mode), std::to_string(v.tokens), std::to_string(v.copies),
                   us_text(v.bf16), us_text(v.fp8_gemms), us_text(v.quantize),
                   fmt::format("{:.2f}", v.fused_quantize), fmt::format("{:.2f}", v.gain),
                   fmt::format("{:.2f} to {:.2f}", v.gain_low, v.gain_high),
                   fmt::format("{:.2f}", judged.eager_bf16_us / judged.eager_fp8_us),
                   fmt::format("{:.1f}", v.saved_us), std::string(name_of(v.verdict)),
                   std::string(name_of(source_of(v)))});
  }
  return table;
}

std::string verdicts_legend() {
  return "times are of one copy: its GEMMs in BF16, in FP8, and its share of quantising; fused: "
         "what quantising adds to a norm or an activation that does it too. e: estimated, n: by a "
         "near record, else measured; by: the least known of them. eager: the gain call by call";
}

std::string sources_text(const std::vector<JudgedLayer>& layers, const std::string& device) {
  Sources by;
  for (const JudgedLayer& judged : layers) by.add(judged.verdict);
  return fmt::format("{} {}: {}", by.are_measured() ? "measured on" : "estimated for", device,
                     by.text());
}

std::string model_text(const ModelVerdict& model, std::optional<double> step_ms) {
  if (!model.too_large.empty()) {
    return fmt::format(
        "{} of {} tokens: the sum is missing, because one rank does not hold the model: {}",
        name_of(model.mode), model.tokens, model.too_large);
  }
  std::string text = fmt::format(
      "{} of {} tokens{}: BF16 {:.0f} us, FP8 {:.0f} us ({:.2f}), best mix {:.0f} us ({:.2f}): ",
      name_of(model.mode), model.tokens, model.by.are_measured() ? "" : ", estimated",
      model.bf16_us, model.fp8_us, model.bf16_us / model.fp8_us, model.best_mix_us,
      model.bf16_us / model.best_mix_us);
  text += static_cast<std::int64_t>(model.mix.size()) == model.by.all() ? "all layers in FP8"
          : model.mix.empty()                                           ? "none in FP8"
                              : fmt::format("FP8 in {}", fmt::join(model.mix, ", "));
  if (model.eager_bf16_us > 0) {
    text += fmt::format("; call by call BF16 {:.0f} us, FP8 {:.0f} us ({:.2f}), best mix {:.2f}",
                        model.eager_bf16_us, model.eager_fp8_us,
                        model.eager_bf16_us / model.eager_fp8_us,
                        model.eager_bf16_us / model.eager_best_mix_us);
  }
  text += fmt::format("; weights {} instead of {}", bytes_text(model.weight_bytes_fp8),
                      bytes_text(model.weight_bytes_bf16));
  if (model.copy_bytes_fp8 > 0)
    text += fmt::format(", {} of it FP8 copies", bytes_text(model.copy_bytes_fp8));
  if (model.kept_bytes_bf16 > 0) {
    text += fmt::format(", kept for backward {} instead of {}", bytes_text(model.kept_bytes_fp8),
                        bytes_text(model.kept_bytes_bf16));
  }
  if (step_ms) {
    const double mix = step_of_mix(model, *step_ms);
    text += fmt::format("; a step of {:.2f} ms becomes {:.2f} ms ({:.2f})", *step_ms, mix,
                        *step_ms / mix);
  }
  return text;
}

double step_of_mix(const ModelVerdict& model, double step_ms) {
  return step_ms - (model.bf16_us - model.best_mix_us) * 1e-3;
}

}  // namespace octile::tools
