#include "runtime/compiler/own_folder.h"

#include <dlfcn.h>
#include <sys/auxv.h>

#include "cache/file_ops.h"

namespace octile {

// dladdr calls the main program by the name that its caller gave it, so its file is read from
// /proc.
std::string own_folder() {
  static const char here = 0;
  Dl_info own = {};
  Dl_info main = {};
  if (dladdr(&here, &own) == 0) return {};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel gives the address as a number
  const bool in_main = dladdr(reinterpret_cast<const void*>(getauxval(AT_PHDR)), &main) != 0 &&
                       main.dli_fbase == own.dli_fbase;
  const auto file = cache::resolve_links(in_main ? "/proc/self/exe" : own.dli_fname);
  return file ? file->substr(0, file->rfind('/') + 1) : std::string();
}

}  // namespace octile
