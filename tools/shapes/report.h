// The output of `octile shapes`.
#pragma once

#include <string>
#include <vector>

#include "tools/common/handles.h"
#include "tools/common/text_table.h"
#include "tools/models/config/model.h"
#include "tools/models/parallel.h"

namespace octile::tools {

struct ModelShapes {
  Model whole;  // with recipes
  Model rank;   // what one rank holds, fused as the layout says
  Parallel parallel;
};

// Return the operations and the bytes of weights that one token of a rank needs, of all layers.
double operations_per_token(const Weight& weight, const Parallel& parallel);
double bytes_per_token(const Weight& weight, const Parallel& parallel);

std::string headline(const ModelShapes& shapes);
TextTable weights_table(const ModelShapes& shapes);
TextTable left_out_table(const ModelShapes& shapes);
std::string totals_text(const ModelShapes& shapes);
Json to_json(const ModelShapes& shapes);

TextTable shipped_table(const std::vector<Model>& models);
Json shipped_json(const std::vector<Model>& models);

}  // namespace octile::tools
