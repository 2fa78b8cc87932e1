// The metadata section of an entry: JSON, so that a person can read it with any tool. Fields, their
// order and their types are listed in FORMAT.md.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "cache/entry.h"

namespace octile::cache {

// One line, fields in a fixed order. Beside entry.metadata it carries the toolchain and, for
// listings that read no further, the kernel's name and architecture.
std::string metadata_to_json(const Entry& entry);

// What the section says; cubin_bytes stays 0. Every field of this version is required, unknown ones
// are passed over (they come from a newer library). The error names the field.
tl::expected<Head, std::string> metadata_from_json(std::string_view text);

}  // namespace octile::cache
