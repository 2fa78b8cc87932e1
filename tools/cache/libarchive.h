// libarchive, opened at run time. Only `cache export` and `cache import` need it, so every other
// subcommand works on machines that lack it.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <string>

#include "generator/core/error.h"

// Every function of libarchive that Octile calls. Every libarchive of version 3 has all of them.
#define OCTILE_LIBARCHIVE_FUNCTIONS(X)     \
  X(archive_error_string)                  \
  X(archive_write_new)                     \
  X(archive_write_free)                    \
  X(archive_write_set_format_ustar)        \
  X(archive_write_set_bytes_in_last_block) \
  X(archive_write_open)                    \
  X(archive_write_header)                  \
  X(archive_write_data)                    \
  X(archive_write_close)                   \
  X(archive_read_new)                      \
  X(archive_read_free)                     \
  X(archive_read_support_format_tar)       \
  X(archive_read_open)                     \
  X(archive_read_next_header)              \
  X(archive_read_data)                     \
  X(archive_entry_new)                     \
  X(archive_entry_free)                    \
  X(archive_entry_pathname)                \
  X(archive_entry_filetype)                \
  X(archive_entry_hardlink)                \
  X(archive_entry_symlink)                 \
  X(archive_entry_size)                    \
  X(archive_entry_sparse_count)            \
  X(archive_entry_set_pathname)            \
  X(archive_entry_set_filetype)            \
  X(archive_entry_set_perm)                \
  X(archive_entry_set_mtime)               \
  X(archive_entry_set_size)

namespace octile::tools {

// One typed pointer for each function of the list. open() leaves none of them null.
struct LibArchive {
#define OCTILE_DECLARE(name) decltype(&::name) name = nullptr;
  OCTILE_LIBARCHIVE_FUNCTIONS(OCTILE_DECLARE)
#undef OCTILE_DECLARE

  // Opens OCTILE_LIBARCHIVE if it is set, else libarchive.so.13, and never unloads it. Errors:
  // kUnsupported, with a sentence that names the package to install.
  static Result<LibArchive> open();
  static Result<LibArchive> open(const std::string& path);
};

}  // namespace octile::tools
