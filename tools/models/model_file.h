// Model-shape files (tools/models/*.json): the linear layers of a published model as GEMM shapes,
// for `compile`, `tune` and `bench`. One JSON object:
//   {"model": "DeepSeek-V3",
//    "source": "deepseek-ai/DeepSeek-V3 config.json: hidden 7168, ...",
//    "gemms": [{"name": "o_proj", "n": 7168, "k": 16384, "split": "k"}, ...],
//    "tokens": [64, 128, 4096, 8192],
//    "experts": {"count": 256, "per_token": 8,
//                "gate_up": {"n": 4096, "k": 7168}, "down": {"n": 7168, "k": 2048}}}
// n and k are those of the whole layer's Y[m,n] = X[m,k] W[n,k]^T; projections that read the same
// input are one GEMM. `split` says which of them tensor parallelism divides by its degree: "n"
// (column-parallel), "k" (row-parallel) or "none". `tokens` are the m worth measuring, ascending.
// `experts` is optional: `count` experts in each such layer of the model, of which every token goes
// to `per_token`, and the two linear layers of one expert.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile::tools {

enum class TensorSplit { kNone, kN, kK };

struct ModelGemm {
  std::string name;
  std::int64_t n = 0;
  std::int64_t k = 0;
  TensorSplit split = TensorSplit::kNone;
};

struct ExpertGemm {
  std::int64_t n = 0;
  std::int64_t k = 0;
};

struct ModelExperts {
  std::int64_t count = 0;
  std::int64_t per_token = 0;
  ExpertGemm gate_up, down;
};

struct ModelFile {
  std::string model;
  std::string source;
  std::vector<ModelGemm> gemms;
  std::vector<std::int64_t> tokens;
  std::optional<ModelExperts> experts = std::nullopt;
  std::string origin = {};  // what errors about its layers begin with
};

// An error begins with `origin` and names the field, its value and what is allowed. Unknown fields
// are refused, because a misspelt one would otherwise be ignored.
Result<ModelFile> parse_model_file(std::string_view json, std::string_view origin);

// Reads the file once. `path` is "-" for standard input. Errors: kInvalidArgument, also for a file
// that cannot be read.
Result<ModelFile> read_model_file(const std::string& path);

}  // namespace octile::tools
