// The contents of a page about measurements, and its rows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/tuning_record.h"
#include "generator/core/device_spec.h"
#include "runtime/measure/record.h"
#include "tools/models/model_options.h"
#include "tools/models/verdict.h"

namespace octile::tools {

// The layers of models by the canonical text of their problems, '?' for the token count.
using LayerNames = std::map<std::string, std::string>;

// Returns the layers' problems in all modes and layouts that the options leave open. Errors: those
// of ModelOptions::read() and works_of_model().
Result<LayerNames> layer_names(const ModelOptions& options, const std::string& recipe);

struct PageContent {
  std::vector<std::string> models;   // empty: problems of no model in particular
  std::optional<DeviceSpec> device;  // absent: no description of the card is known
  std::string device_name;           // as the driver says it, or its canonical name
  std::vector<cache::TuningRecord> tuned;
  std::vector<Record> measured;
  LayerNames names;
  std::vector<LayerVerdict> layers;
  std::vector<std::string> judged;  // the models that have these layers, by their names
  std::vector<ModelVerdict> totals;
};

// Adds the verdicts on the models that the options name, by the content's records, the library's
// own set and estimates; nothing without a description of the card, or if it has no
// kernels of GEMMs. `counts` empty: all of each mode. Errors: those of reading the models.
Status add_verdicts(PageContent& content, const ModelOptions& options, const std::string& recipe,
                    const std::vector<std::int64_t>& counts);

// A measurement in microseconds. Numbers that the record does not hold are absent.
struct PageRow {
  std::string layer;    // of a model, otherwise empty
  std::string problem;  // canonical text without its token count, or a benchmark's name
  std::string label;    // what a table calls it
  std::string kind;     // "gemm", "quantize", "transpose", ..., "bench"
  std::optional<std::int64_t> tokens;
  double us = 0;
  std::optional<double> low_us, high_us;
  std::optional<double> default_us, gain;
  std::optional<double> bf16_us;
  std::string peer;  // what else was timed beside it
  std::optional<double> peer_us;
  std::optional<double> predicted_us;  // by the cost model
  std::optional<double> intensity;     // operations of a byte
  std::optional<double> tflops, tbps;
  std::string promote;          // the promotion interval whose error was measured
  std::optional<double> error;  // of it, as a share of the sum of magnitudes
  std::string config;
  std::string date;
};

// Returns a row for each decision and for each right measurement in microseconds.
std::vector<PageRow> rows_of(const PageContent& content);

}  // namespace octile::tools
