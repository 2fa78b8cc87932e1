// Problems to work on, with their token counts: one problem, or the linear layers of a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/families.h"
#include "generator/gemm/passes.h"
#include "tools/models/config/model.h"
#include "tools/models/layout.h"
#include "tools/models/mode.h"
#include "tools/models/model_file.h"
#include "tools/models/parallel.h"

namespace octile::tools {

// The largest token count that is prepared and tuned by default. Frameworks split larger batches,
// and the kernel of this count serves every larger one.
inline constexpr std::int64_t kMostTokens = 16384;

struct TokenRange {
  std::int64_t lo = 0, hi = 0;  // both included
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// A problem and the token counts that are wanted. Without counts, those of the command apply.
struct Request {
  Problem problem;
  std::vector<std::int64_t> counts;
};

struct Work {
  std::string name;  // name of the layer; empty for a problem from the command line
  Problem problem;   // its token count is dynamic, or the only one of `tokens`
  std::vector<TokenRange> tokens;
  // How many layers of the model have it; 0: a weight that is quantised before the model runs.
  std::int64_t layers = 1;
};

std::vector<std::string> recipe_name_list();
// Errors: kInvalidArgument, naming --recipe.
Result<const Recipe*> recipe_of_option(const std::string& name);

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

// Returns the GEMMs of the passes of the linear layer MxNxK. A wgrad leaves its token count open
// and has M in `counts`, because a problem that states all of its dimensions has its tokens in m.
// Errors: kInvalidArgument, also if counts are given and M is a number.
Result<std::vector<Request>> gemms_of_shape(const std::string& mxnxk, const std::string& recipe,
                                            const std::vector<Pass>& passes,
                                            const std::vector<std::int64_t>& counts);

// Who runs the layers, and so in which types and copies their problems are.
enum class LayerUser {
  kLibrary,  // bf16 inputs, dW added to in fp32; a quantiser writes the copies that the passes read
  kTorch,    // octile.torch, with a model in bf16 and neither bias nor sentry
  kVllm,     // the plug-in of vLLM, with a model in bf16: dense layers of blocks
  kSglang    // that of SGLang, which quantises inputs too
};
std::vector<std::string> layer_user_names();
// Returns whether the user is the plug-in of a serving engine.
bool is_engine(LayerUser user);
// Errors: kInvalidArgument, naming --for.
Result<LayerUser> layer_user_of_option(const std::string& name);  // "": kLibrary

// The work that is asked of a model.
struct ModelUse {
  std::vector<Mode> modes = {Mode::kDecode, Mode::kPrefill};
  bool modes_given = false;                     // by the caller
  std::vector<Pass> passes = {};                // empty: those of the mode
  std::vector<std::int64_t> counts = {};        // empty: those of the mode, or of a list of shapes
  std::optional<Layout> layout = std::nullopt;  // empty: serving, and separate to train
  Parallel parallel = {};
  bool experts_of_lists = false;  // of a list of shapes, experts too
  LayerUser user = LayerUser::kLibrary;
};

// Returns, for each weight of a rank that has a recipe, the GEMMs of the passes and the quantisers
// of the operands that they read: an activation in rows for fprop and in columns for wgrad, a
// weight in rows for fprop and in columns for dgrad, a gradient in rows for dgrad and in columns
// for wgrad. Experts are contiguous groups, whose counts are the rows that the rank's experts
// receive. In decode they are masked groups, whose counts are the rows that an expert may expect,
// and kv_b_proj is two batched products; where such a kernel is missing, contiguous groups and
// nothing stand for them. An error about a shape begins with the model's origin.
//
// For octile.torch these are all problems that its layers ask: whether or not gradients are
// recorded, the input or the weight needs one, dW goes to weight.grad or to an fp32 main_grad, and
// both copies of a weight are made from one read or each by itself, as FSDP2 may need.
//
// For the plug-in of an engine these are the products of dense layers, at all token counts from 1
// to the largest. Errors: kInvalidArgument also for layers that are not in blocks.
Result<std::vector<Work>> works_of_model(const Model& rank, const ModelUse& use);

// The experts of one rank of expert parallelism. Every rank has as many tokens, sends each to
// per_token of the model's experts, and holds an equal share of these.
struct ExpertShare {
  std::int64_t experts = 0;         // experts of this rank
  std::int64_t rows_per_token = 0;  // what they receive in all, for each token of the rank
  ExpertGemm gate_up, down;
};
// `name` is that of --model. Errors: kInvalidArgument for a model without experts, or if `ranks`
// does not divide them.
Result<ExpertShare> share_of_experts(const Model& model, const std::string& name,
                                     std::int64_t ranks);

// Returns the rows that the experts receive. Errors: kInvalidArgument for --tokens below 1, or if
// these are 2^31 rows or more.
Result<std::int64_t> rows_of(const ExpertShare& share, std::int64_t tokens);

// Returns each problem once, in the order of its first occurrence, with the token counts of all.
std::vector<Work> distinct(std::vector<Work> works);

}  // namespace octile::tools
