// Configurations as text: fields "name=value", spaces between them.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "generator/core/error.h"

namespace octile {

// The whole text, in decimal.
bool parse_int(std::string_view text, int& value);

// "128x128x128" into exactly values.size() integers.
bool parse_extents(std::string_view text, const std::vector<int*>& values);

// False where there is no such field or it takes no such value.
using SetField = std::function<bool(std::string_view name, std::string_view value)>;

// Errors: kInvalidArgument for the first field that is not set: "`what` field '...' is not one of
// `allowed`".
Status parse_fields(std::string_view text, const SetField& set, std::string_view what,
                    std::string_view allowed);

}  // namespace octile
