// Problems to work on, with their token counts: one problem, or the linear layers of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/families.h"
#include "tools/models/model_file.h"

namespace octile::tools {

// The largest token count that is prepared and tuned by default. Frameworks split larger batches,
// and the kernel of this count serves every larger one.
inline constexpr std::int64_t kMostTokens = 16384;

struct TokenRange {
  std::int64_t lo = 0, hi = 0;  // both included
};

struct Work {
  std::string name;  // of the layer; empty for a problem from the command line
  Problem problem;   // its token count is dynamic, or the only one of `tokens`
  std::vector<TokenRange> tokens;
};

// Returns the names of the models shipped with the command: "deepseek-v3, ...".
std::string model_names();

// `model` is a path or the name of a shipped model.
Result<ModelFile> find_model(const std::string& model);

// Returns the counts of --tokens that apply to one of several problems: none if the problem states
// its own.
std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts);

// Errors: kInvalidArgument if counts are given for a problem that states one.
Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts);

// If `counts` is empty, the token count is the one that the problem states, or 1 to 16384. Errors:
// kInvalidArgument if counts are given for a problem that states one, or if a count is below 1.
Result<std::vector<Work>> work_of_problem(const Problem& problem,
                                          const std::vector<std::int64_t>& counts);

// Returns, for each linear layer, the GEMM of the forward pass and the quantisers of its activation
// and weight. If `counts` is empty, the token counts are those of the model.
Result<std::vector<Work>> work_of_layers(const ModelFile& model, const std::string& recipe,
                                         const std::vector<std::int64_t>& counts);

}  // namespace octile::tools
