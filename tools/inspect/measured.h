// The loss of quantising a weight by recipes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/recipe.h"
#include "tools/inspect/subjects.h"

namespace octile::tools {

// The recipes of a run, and the types that their weights have.
class RecipeTypes {
 public:
  // Errors: kInvalidArgument for a name that is not that of a recipe.
  static Result<RecipeTypes> of(const std::vector<std::string>& names);

  struct Row {
    const Recipe* recipe = nullptr;
    std::size_t type = 0;                  // index of its weights' type
    std::optional<std::size_t> pow2 = {};  // of the same blocks with scales that are powers of two
    std::optional<std::size_t> f32 = {};   // and with fp32 scales, if a recipe has them
  };
  std::span<const Row> rows() const { return rows_; }
  std::span<const TensorType> types() const { return types_; }

 private:
  std::size_t index_of(const TensorType& type);
  std::vector<Row> rows_;
  std::vector<TensorType> types_;
};

// A matrix with values that are not finite.
struct NonfiniteMatrix {
  std::int64_t number = 0;
  std::string file;
};

struct Measured {
  reference::ValueCounts values;
  std::vector<NonfiniteMatrix> nonfinite;  // in their order
  bool has_infinities = false;             // that are stored, not made by rounding F64 to fp32
  bool has_beyond_fp32 = false;            // finite values of F64 among those counted as infinities
  std::vector<reference::Loss> losses;     // one for each type
};

// Measures all matrices of the subject; without types, only their values are counted. Errors: those
// of its files.
Result<Measured> measure(const Subject& subject, std::span<const TensorType> types, double sample);

}  // namespace octile::tools
