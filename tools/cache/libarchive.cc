#include "tools/cache/libarchive.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "cache/shared_library.h"
#include "runtime/base/environment.h"

namespace octile::tools {
namespace {

constexpr const char* kDefaultPath = "libarchive.so.13";
constexpr const char* kRemedy =
    "`octile cache export` and `octile cache import` need it: install the package libarchive13 "
    "(libarchive13t64 since Ubuntu 24.04 and Debian 13), or name the library in OCTILE_LIBARCHIVE";

tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
  return fail(ErrorCode::kUnsupported, fmt::format("libarchive \"{}\" {}; {}", path, why, kRemedy));
}

}  // namespace

Result<LibArchive> LibArchive::open() {
  return open(environment_path("OCTILE_LIBARCHIVE").value_or(kDefaultPath));
}

Result<LibArchive> LibArchive::open(const std::string& path) {
  const auto opened = cache::open_library(path);
  if (!opened) return refuse(path, fmt::format("cannot be opened: {}", opened.error()));
  void* const library = *opened;
  LibArchive functions;
#define OCTILE_RESOLVE(name)                                                     \
  functions.name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  if (functions.name == nullptr) return refuse(path, "does not export " #name);
  OCTILE_LIBARCHIVE_FUNCTIONS(OCTILE_RESOLVE)
#undef OCTILE_RESOLVE
  return functions;
}

}  // namespace octile::tools
