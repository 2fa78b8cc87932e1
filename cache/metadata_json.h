// The metadata section of an entry. It is JSON, so that a person can read it with any tool.
// FORMAT.md lists the fields with their order and types.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "cache/entry.h"

namespace octile::cache {

// Returns one line with the fields in a fixed order. It contains entry.metadata and the toolchain.
// It also contains the kernel's name and architecture, for listings that read only the head.
std::string metadata_to_json(const Entry& entry);

// Returns the section's content with cubin_bytes 0. Every field of this version is required.
// Unknown fields are ignored, because a newer library may have written them. The error names the
// field.
tl::expected<Head, std::string> metadata_from_json(std::string_view text);

}  // namespace octile::cache
