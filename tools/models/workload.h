// What compile and bench are asked to work on: one problem, or the linear layers of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/families.h"
#include "tools/models/model_file.h"

namespace octile::tools {

struct TokenRange {
  std::int64_t lo = 0, hi = 0;  // both included
};

struct Work {
  std::string name;  // of the layer; empty for a problem from the command line
  Problem problem;   // token count dynamic, or the only one of `tokens`
  std::vector<TokenRange> tokens;
};

// Names of the models shipped with the command, "deepseek-v3, ...".
std::string model_names();

// `model`: a path, or the name of a shipped model.
Result<ModelFile> find_model(const std::string& model);

// The count of rows or tokens a problem states; kDynamic where it leaves it open.
std::int64_t tokens_of(const Problem& problem);

// What --tokens says of one of several problems: nothing where it states its count.
std::vector<std::int64_t> counts_for(const Problem& problem,
                                     const std::vector<std::int64_t>& counts);

// Errors: kInvalidArgument, where counts are given for a problem that states one.
Status check_counts(const Problem& problem, const std::vector<std::int64_t>& counts);

// `counts` empty: the count the problem states, else 1 to 16384. Errors: kInvalidArgument, where
// counts are given for a problem that states one, or one is below 1.
Result<std::vector<Work>> work_of_problem(const Result<Problem>& problem,
                                          const std::vector<std::int64_t>& counts);

// What `octile bench quantize` times: for every granularity the row-wise copy, the transposed one
// and both, over shapes from a launch's size to 230 MB of bf16; beside them the other scale formats
// and inputs at one shape, and groups of rows. `names`: only problems whose text holds one of
// these; empty: all.
std::vector<Work> work_of_quantisers(const std::vector<std::string>& names);

// For each linear layer the product of the forward pass, then the quantisers of its activation and
// weight. `counts` empty: those of the model.
Result<std::vector<Work>> work_of_layers(const ModelFile& model, const std::string& recipe,
                                         const std::vector<std::int64_t>& counts);

}  // namespace octile::tools
