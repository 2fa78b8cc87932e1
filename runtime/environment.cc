#include "runtime/environment.h"

#include <array>
#include <cstdlib>

namespace octile {
namespace {

constexpr std::array kVariables{
    EnvironmentVariable{"OCTILE_CACHE_DIR", "writable cache root; default the XDG cache folder"},
    EnvironmentVariable{"OCTILE_CACHE_ROOTS", "read-only cache roots, ':'-separated; default none"},
    EnvironmentVariable{"OCTILE_CACHE_MAX_BYTES",
                        "bytes of kernels in the writable root; 0: no bound; default 5368709120"},
    EnvironmentVariable{"OCTILE_OFFLINE", "1: never compile; default 0"},
    EnvironmentVariable{"OCTILE_TUNING",
                        "off: no tuning records, the cost model chooses; default on"},
    EnvironmentVariable{"OCTILE_LIBCUDA", "driver library to open; default libcuda.so.1"},
    EnvironmentVariable{"OCTILE_LIBNVRTC", "NVRTC library to open; default: searched, see doctor"},
    EnvironmentVariable{"OCTILE_COMPILER",
                        "program that compiles; in-process: none; default octile-compiler beside "
                        "the library"},
    EnvironmentVariable{"OCTILE_LIBCUBLASLT", "cuBLASLt library for `bench --baseline cublaslt`"},
    EnvironmentVariable{"OCTILE_LIBARCHIVE",
                        "libarchive for `cache export` and `cache import`; default "
                        "libarchive.so.13"},
    EnvironmentVariable{"XDG_CACHE_HOME", "parent of the default cache folder; default ~/.cache"},
    EnvironmentVariable{"HOME", "home folder, for the default cache folder"},
    EnvironmentVariable{"LD_LIBRARY_PATH", "searched for libraries by the loader; default none"},
    EnvironmentVariable{"CUDA_HOME", "toolkit folder searched for NVRTC; default /usr/local/cuda"},
    EnvironmentVariable{"CUDA_PATH", "searched for NVRTC after CUDA_HOME; default none"},
    EnvironmentVariable{"VIRTUAL_ENV", "Python environment searched for NVRTC; default none"},
    EnvironmentVariable{"PATH", "its first python3 is searched for NVRTC"},
};

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::optional<std::string> environment_value(std::string_view name) {
  for (const EnvironmentVariable& v : kVariables) {
    if (v.name != name) continue;
    // Null in a program that runs with more rights than its caller (setuid, setgid, capabilities):
    // the caller would otherwise choose the libraries that it loads and the kernels that it runs.
    const char* value = ::secure_getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
  }
  return std::nullopt;
}

}  // namespace octile
