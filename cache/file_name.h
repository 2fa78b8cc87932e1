// Names inside a root (FORMAT.md): <root>/v1/<2 hex>/<identity>-<toolchain>.octile, the folder
// being the first two digits of the name. A reader recognises what belongs to the cache by its name
// alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace octile::cache {

// The part of a name shared by an entry, its temporary files and its lock: digests of the key text
// and of the toolchain text, so a host without a compiler finds all entries of an identity by
// prefix.
struct FileStem {
  std::string identity;   // 32 hex digits
  std::string toolchain;  // 32 hex digits
  std::string folder() const { return identity.substr(0, 2); }
  std::string entry_name() const;
  std::string lock_name() const;
  std::string damaged_name() const;    // of an entry that was set aside
  std::string temporary_name() const;  // another one each time
};

enum class FileKind { kEntry, kLock, kTemporary, kDamaged };
struct FileName {
  FileStem stem;
  FileKind kind = FileKind::kEntry;
};

// Nothing for a name that is not of this cache.
std::optional<FileName> parse_file_name(std::string_view name);

bool is_folder_name(std::string_view name);  // two lower-case hex digits

}  // namespace octile::cache
