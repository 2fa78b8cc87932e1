// Names and limits that the writer and the reader of archives share (FORMAT.md, section 7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cache/file_name.h"
#include "tools/cache/libarchive.h"

namespace octile::tools {

inline constexpr std::string_view kManifestName = "octile-cache.manifest";
inline constexpr std::string_view kManifestHead = "octile cache archive 2\n";

// The limit keeps a forged archive from occupying a reader for ever.
inline constexpr std::size_t kMaxArchiveEntries = 1'000'000;
// A line is "<64 hex> <decimal> v1/<2 hex>/<65 hex>.octile\n" with a decimal of up to 8 digits.
inline constexpr std::size_t kMaxManifestBytes = 160 * kMaxArchiveEntries;

// Freed by the function of the opened library that belongs to it.
using ArchiveHandle = std::unique_ptr<archive, int (*)(archive*)>;

std::string member_name(const cache::FileStem& stem);
// Returns nothing for a name that no entry has.
std::optional<cache::FileStem> stem_of_member(std::string_view name);
std::string manifest_line(std::string_view name, std::span<const std::uint8_t> bytes);

// Returns what libarchive says of the last error.
std::string error_text(const LibArchive& lib, archive* a);

}  // namespace octile::tools
