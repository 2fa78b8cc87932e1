// The part of an emitted source that identifies a kernel: the text that the compiler sees.
#pragma once

#include <string>
#include <string_view>

namespace octile {

// Returns `source` without its #line directives, its empty lines and what `#ifndef OCTILE_EMITTED`
// guards: the includes and defaults with which a template parses by itself. Names and line numbers
// of template files are in those alone, so renaming a template, or editing its comments, changes no
// kernel's identity. Compiles to the same cubin as `source`.
std::string identity_text(std::string_view source);

}  // namespace octile
