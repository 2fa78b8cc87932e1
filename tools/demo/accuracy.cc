#include "tools/demo/accuracy.h"

#include <fmt/format.h>

#include <array>

#include "generator/core/layout.h"
#include "runtime/families/quantize/complete.h"
#include "runtime/reference/cast.h"
#include "runtime/reference/metrics.h"
#include "runtime/reference/quantize/reference_dequantize.h"
#include "tools/common/text_table.h"

namespace octile::tools {
namespace {

using reference::ActivationSpec;

struct Study {
  const ActivationSpec& spec;
  std::vector<std::uint16_t> x_bits;
  std::vector<float> x;
  std::vector<std::uint8_t> bulk;
};

Study make_study(const ActivationSpec& spec) {
  Study s{spec, reference::synthetic_activations(spec), {}, reference::bulk_of(spec)};
  s.x.reserve(s.x_bits.size());
  for (const std::uint16_t bits : s.x_bits) s.x.push_back(reference::bf16_to_float(bits));
  return s;
}

// Quantises and dequantises with the host reference.
Result<std::vector<float>> restore(const Study& s, const QuantizeProblem& problem,
                                   const QuantizedLayout& layout) {
  std::vector<std::uint8_t> q(static_cast<std::size_t>(layout.data.bytes()));
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(layout.scales.bytes()));
  QuantizeArguments args;
  args.rows = s.spec.rows;
  args.x = s.x_bits.data();
  args.q = q.data();
  args.scale = scales.data();
  const auto call = complete(problem, args);
  if (!call) return tl::unexpected<Error>(call.error());
  if (Status ok = run_on_host(problem, *call); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<float> restored(s.x.size());
  if (Status ok = reference::dequantize(problem.q, s.spec.rows, s.spec.cols, q.data(),
                                        scales.data(), restored.data());
      !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  return restored;
}

Result<GranularityLoss> study_granularity(const Study& s, Granularity granularity) {
  QuantizeProblem problem;
  problem.cols = s.spec.cols;
  problem.q = {DType::kE4M3, granularity, ScaleFormat::kF32};
  const auto layout = quantized_layout(problem.q, s.spec.rows, s.spec.cols);
  if (!layout) return tl::unexpected<Error>(layout.error());
  const auto restored = restore(s, problem, *layout);
  if (!restored) return tl::unexpected<Error>(restored.error());
  const auto integers = reference::integer_model(s.x, s.spec.rows, s.spec.cols, granularity);
  if (!integers) return tl::unexpected<Error>(integers.error());

  GranularityLoss loss;
  loss.granularity = granularity;
  loss.scale_count = layout->scale_rows * layout->scale_cols;
  loss.scale_bytes = layout->scales.bytes();
  loss.data_bytes = layout->data.bytes();
  const auto all = reference::quantization_loss(s.x, *restored);
  loss.snr_db = all.snr_db;
  loss.flushed_share = all.flushed_share;
  loss.snr_bulk_db = reference::quantization_loss(s.x, *restored, s.bulk).snr_db;
  const auto integer_all = reference::quantization_loss(s.x, *integers);
  loss.integer_snr_db = integer_all.snr_db;
  loss.integer_flushed_share = integer_all.flushed_share;
  loss.integer_snr_bulk_db = reference::quantization_loss(s.x, *integers, s.bulk).snr_db;
  return loss;
}

}  // namespace

Result<OutlierStudy> study_outlier(const ActivationSpec& spec,
                                   const std::function<void(const std::string&)>& began) {
  began(fmt::format("drawing activations {} x {}", spec.rows, spec.cols));
  const Study study = make_study(spec);
  OutlierStudy result;
  result.outlier = spec.outlier;
  for (const Granularity granularity :
       {Granularity::kPerTensor, Granularity::k128x128, Granularity::k1x128}) {
    began(fmt::format("quantising with scales per {}", name_of(granularity)));
    const auto loss = study_granularity(study, granularity);
    if (!loss) return tl::unexpected<Error>(loss.error());
    result.rows.push_back(*loss);
  }
  return result;
}

Json to_json(const OutlierStudy& study) {
  Json rows = Json::array();
  for (const GranularityLoss& r : study.rows) {
    rows.push_back({{"granularity", name_of(r.granularity)},
                    {"scale_count", r.scale_count},
                    {"scale_bytes", r.scale_bytes},
                    {"data_bytes", r.data_bytes},
                    {"snr_db", r.snr_db},
                    {"snr_bulk_db", r.snr_bulk_db},
                    {"flushed_share", r.flushed_share},
                    {"integer_snr_db", r.integer_snr_db},
                    {"integer_snr_bulk_db", r.integer_snr_bulk_db},
                    {"integer_flushed_share", r.integer_flushed_share}});
  }
  return {{"outlier", study.outlier}, {"granularities", rows}};
}

TextTable to_table(const OutlierStudy& study) {
  TextTable table({"<scales", "count", "data + scale bytes", "E4M3 SNR", "bulk", "flushed",
                   "integer SNR", "integer bulk", "integer flushed"});
  table.leave_out({"integer flushed", "integer bulk", "count", "data + scale bytes", "flushed"});
  const auto db = [](double value) { return fmt::format("{:.1f} dB", value); };
  const auto share = [](double value) { return fmt::format("{:.3f} %", 100 * value); };
  for (const GranularityLoss& r : study.rows) {
    table.add_row({r.granularity == Granularity::kPerTensor ? "per tensor"
                                                            : std::string(name_of(r.granularity)),
                   fmt::format("{}", r.scale_count),
                   fmt::format("{} + {}", r.data_bytes, r.scale_bytes), db(r.snr_db),
                   db(r.snr_bulk_db), share(r.flushed_share), db(r.integer_snr_db),
                   db(r.integer_snr_bulk_db), share(r.integer_flushed_share)});
  }
  return table;
}

}  // namespace octile::tools
