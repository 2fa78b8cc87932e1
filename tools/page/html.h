// Text within HTML. Names of models, GPUs and paths come from files of others.
#pragma once

#include <string>
#include <string_view>

#include "cache/json.h"

namespace octile::tools {

// Returns the text for an element or a quoted attribute. Control characters and bytes that are not
// UTF-8 are written as \x1b.
std::string html_text(std::string_view text);

// Returns JSON for a <script>, which no string in it can end.
std::string json_in_script(const Json& json);

std::string base64(std::string_view bytes);

// Returns what a Content-Security-Policy names a script or a style by: 'sha256-...'.
std::string csp_hash(std::string_view text);

}  // namespace octile::tools
