#include "cache/shared_library.h"

#include <dlfcn.h>

#include <utility>

#include "cache/file_ops.h"

namespace octile::cache {

tl::expected<void*, std::string> open_library(const std::string& path) {
  if (path.find('/') != std::string::npos) {
    FileOps ops;
    // The loader has better words for a file that is missing.
    if (auto file = open_named(ops, path); !file && file.error().code == 0)
      return tl::unexpected(std::move(file.error().sentence));
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
  return tl::unexpected(std::string(why != nullptr ? why : "unknown reason"));
}

}  // namespace octile::cache
