// File names inside a root (FORMAT.md): <root>/v1/<2 hex>/<identity>-<toolchain>.octile. The folder
// is the first two digits of the name. A reader recognises the cache's files by their names alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octile::cache {

// The part of a name that an entry shares with its temporary files and its lock. It consists of the
// digests of the key text and of the toolchain text. A host without a compiler can therefore find
// all entries of an identity by prefix.
struct FileStem {
  std::string identity;   // 32 hex digits
  std::string toolchain;  // 32 hex digits
  std::string folder() const { return identity.substr(0, 2); }
  std::string entry_name() const;
  std::string lock_name() const;
  std::string damaged_name() const;    // name after an entry was set aside
  std::string temporary_name() const;  // a new name on each call
};

enum class FileKind { kEntry, kLock, kTemporary, kDamaged };
struct FileName {
  FileStem stem;
  FileKind kind = FileKind::kEntry;
};

// Returns empty if the name does not belong to this cache.
std::optional<FileName> parse_file_name(std::string_view name);

// Returns a new name on each call: "<name>.<16 hex>.tmp". The second function recognises them.
std::string temporary_name_of(std::string_view name);
bool is_temporary_name_of(std::string_view name, std::string_view temporary);

bool is_folder_name(std::string_view name);  // true for two lower-case hex digits

}  // namespace octile::cache
