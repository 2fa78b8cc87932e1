// Documents that `octile shapes --json` prints and octile.torch.shapes() writes, read again as a
// model.
#pragma once

#include <string>

#include "cache/json.h"
#include "generator/core/error.h"
#include "tools/models/config/model.h"

namespace octile::tools {

bool is_shapes_document(const Json& document);

// Returns the model of a document of one. Its weights keep their recipes if --recipe is auto. The
// rest is said by their names, also how ranks divide a weight whose `split` is "?".
// Errors: kInvalidArgument, beginning with `origin`, with the field, its value and what is allowed.
// Unknown fields are ignored: sums that the command prints too.
Result<Model> model_of_shapes_document(const Json& document, const std::string& origin);

}  // namespace octile::tools
