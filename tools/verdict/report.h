// Verdicts as the command prints them. FP8 pays from a gain of kLeastGain on
// (tools/models/verdict.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "generator/core/device_spec.h"
#include "tools/common/handles.h"
#include "tools/common/text_table.h"
#include "tools/models/judge.h"

namespace octile::tools {

// The layers of one rank of a model, and the sums of each mode and token count.
struct Verdicts {
  std::vector<JudgedLayer> layers;
  std::vector<ModelVerdict> sums;
};

// Prints a line a layer, what the columns mean, and the sums.
void print_verdicts(const Verdicts& verdicts, std::optional<double> step_ms, bool wide);
Json to_json(const Verdicts& verdicts, std::optional<double> step_ms);

// Returns a line a layer. A near number has an n behind it and an estimated one an e.
TextTable verdicts_table(const std::vector<JudgedLayer>& layers);

// Returns what those letters and the columns mean.
std::string verdicts_legend();

// Returns where the layers are known from: "estimated for h100: 4 of 10 layers measured, ...".
std::string sources_text(const std::vector<JudgedLayer>& layers, const std::string& device);

// Returns the model's line: all BF16, all FP8, the best mix and its layers, bytes; and the step if
// its time in BF16 is known. It says "estimated" unless all layers were measured. For a model
// that does not fit, it says why the sum is missing.
std::string model_text(const ModelVerdict& model, std::optional<double> step_ms);

// Returns the step's milliseconds by the best mix.
double step_of_mix(const ModelVerdict& model, double step_ms);

}  // namespace octile::tools
