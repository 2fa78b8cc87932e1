// JSON that others wrote, within bounds.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "cache/json.h"
#include "generator/core/error.h"

namespace octile::tools {

inline constexpr std::size_t kMostDocumentBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMostDocumentDepth = 64;

// Returns the document. Infinity and NaN, as Python writes them, are numbers. Errors:
// kInvalidArgument, beginning with `origin`, for a text that is not JSON, is nested deeper than 64,
// or has a key twice in one object.
Result<Json> parse_document(std::string_view text, const std::string& origin);

// Return the text, or the document, of a regular file of at most that size. Errors: those of
// parse_document(); kInvalidArgument for a folder, a FIFO or a device, none of which is waited for.
Result<std::string> read_regular(const std::string& path,
                                 std::size_t most_bytes = kMostDocumentBytes);
Result<Json> read_document(const std::string& path, std::size_t most_bytes = kMostDocumentBytes);

// Returns the text of a file of at most that size, or of "-", standard input. Pipes are read
// too. `name` receives what errors call it.
Result<std::string> read_text(const std::string& path, std::string& name,
                              std::size_t most_bytes = kMostDocumentBytes);

// Errors: kInvalidArgument unless the path is a regular file, or a link to one.
Status check_regular(const std::string& path);

// Returns the value as an error quotes it: its JSON in ASCII, cut behind 60 characters, because a
// long value would hide the rest of the sentence.
std::string excerpt(const Json& value);

}  // namespace octile::tools
