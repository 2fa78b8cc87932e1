#include "runtime/compiler/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nvrtc.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>

#include "cache/file_ops.h"
#include "cache/key.h"
#include "cache/shared_library.h"
#include "generator/core/cuda_release.h"
#include "runtime/base/environment.h"
#include "runtime/base/fork.h"
#include "runtime/compiler/compile_log.h"
#include "runtime/compiler/file_digest.h"

#define OCTILE_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                 \
  X(nvrtcGetErrorString)          \
  X(nvrtcCreateProgram)           \
  X(nvrtcDestroyProgram)          \
  X(nvrtcCompileProgram)          \
  X(nvrtcGetProgramLogSize)       \
  X(nvrtcGetProgramLog)           \
  X(nvrtcGetCUBINSize)            \
  X(nvrtcGetCUBIN)

namespace octile {
namespace {

// The first release whose ptxas knows every instruction of the templates without known defects. It
// is also the oldest release that the compile tests run.
constexpr CudaRelease kMinimumVersion{12, 8};
// --no-cache appeared together with the cache that it turns off (NVRTC guide, "Caching").
constexpr CudaRelease kComputeCacheVersion{12, 9};

constexpr std::string_view kArchitectureOption = "--gpu-architecture=";
constexpr const char* kReportOption = "--ptxas-options=-v";
constexpr const char* kNoComputeCacheOption = "--no-cache";

struct NvrtcApi {
#define OCTILE_DECLARE(name) decltype(&::name) name = nullptr;
  OCTILE_NVRTC_FUNCTIONS(OCTILE_DECLARE)
#undef OCTILE_DECLARE
};

// Returns the file that an address was loaded from, with links resolved.
std::string loaded_file(const void* address) {
  Dl_info info = {};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  return cache::resolve_links(info.dli_fname).value_or(info.dli_fname);
}

std::string parent_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

std::string name_of(const NvrtcPlace& place) {
  return place.folder.empty() ? place.why : fmt::format("{} ({})", place.folder, place.why);
}

// Returns the status of NVRTC's files, without those that cannot be examined.
std::string files_text(const NvrtcIdentity& identity) {
  cache::FileOps ops;
  std::string text;
  for (const std::string& file : {identity.path, identity.builtins_path})
    if (!file.empty()) text += status_text(ops, file).value_or("");
  return text;
}

// Returns the sentence on a search that found nothing.
std::string not_found_sentence(const std::vector<NvrtcTrial>& tried) {
  std::vector<std::string> places;
  std::string reasons;
  for (const NvrtcTrial& trial : tried) {
    places.push_back(name_of(trial.place));
    if (!trial.place.libraries.empty() || !trial.place.refused.empty())
      reasons += "; " + trial.outcome;
  }
  return fmt::format(
      "NVRTC {}.{} or newer was found in none of: {}; set OCTILE_LIBNVRTC to the path of "
      "libnvrtc.so.13, or CUDA_HOME to the folder of a CUDA toolkit, or install the Python package "
      "nvidia-cuda-nvrtc; without it only kernels already in a cache can be used{}",
      kMinimumVersion.major, kMinimumVersion.minor, fmt::join(places, ", "), reasons);
}

// Makes glibc keep freed memory. By default glibc returns free memory at the top of its heap to the
// kernel from 128 KB on. A compile frees 12 MB, and the next one would fault them in again page by
// page: 3,100 faults, 5 to 10 ms. glibc adapts to the largest block freed so far. It keeps blocks
// up to that size on the heap, and twice as much at its top (mallopt(3), M_MMAP_THRESHOLD).
// Therefore one large block is freed here; none of its pages is ever touched.
void keep_freed_memory() {
  // glibc does not adapt to blocks above 32 MB.
  constexpr std::size_t kBytes = std::size_t{24} << 20;
  // volatile keeps the compiler from removing both calls.
  void* volatile block = std::malloc(kBytes);
  std::free(block);
}

// A program that is destroyed at the end of its scope.
class Program {
 public:
  explicit Program(const NvrtcApi& api) : api_(api) {}
  ~Program() {
    if (program_ != nullptr) api_.nvrtcDestroyProgram(&program_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  nvrtcProgram* out() { return &program_; }
  nvrtcProgram get() const { return program_; }

 private:
  const NvrtcApi& api_;
  nvrtcProgram program_ = nullptr;
};

std::string read_log(const NvrtcApi& api, nvrtcProgram program) {
  std::size_t bytes = 0;
  if (api.nvrtcGetProgramLogSize(program, &bytes) != NVRTC_SUCCESS || bytes == 0) return {};
  std::string log(bytes, '\0');
  if (api.nvrtcGetProgramLog(program, log.data()) != NVRTC_SUCCESS) return {};
  log.resize(std::min(bytes - 1, log.find('\0')));  // the size includes the terminating zero
  return log;
}

}  // namespace

struct Nvrtc::Impl {
  NvrtcApi api;
  CudaRelease version;
  NvrtcIdentity identity;

  std::string error_text(nvrtcResult result) const { return api.nvrtcGetErrorString(result); }
};

Nvrtc::Nvrtc(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Nvrtc::~Nvrtc() = default;

const NvrtcIdentity& Nvrtc::identity() const { return impl_->identity; }

std::string NvrtcIdentity::version_text() const { return fmt::format("nvrtc {}.{}", major, minor); }

Result<std::string> NvrtcIdentity::build_digest() const {
  std::string text;
  for (const std::string& file : {path, builtins_path}) {
    if (file.empty()) continue;
    const auto digest = file_digest(file);
    if (!digest) return digest;
    text += *digest + "\n";
  }
  // The process has what it opened, which is not what was read.
  if (!files.empty() && files_text(*this) != files)
    text = fmt::format("replaced since it was opened\n{}", files);
  return cache::digest_hex(text);
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::open(std::vector<NvrtcTrial>* trials) {
  std::vector<NvrtcTrial> tried;
  auto opened = search(tried);
  if (trials != nullptr) *trials = std::move(tried);
  return opened;
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::search(std::vector<NvrtcTrial>& tried) {
  const auto attempt = [&tried](const std::string& library) {
    auto opened = open(library);
    tried.back().taken = opened.has_value();
    tried.back().outcome = opened ? "taken" : opened.error().message;
    return opened;
  };
  if (const auto path = environment_path("OCTILE_LIBNVRTC")) {
    tried.push_back({{parent_folder(*path), "OCTILE_LIBNVRTC", {*path}, {}, true}, false, {}});
    return attempt(*path);
  }
  for (NvrtcPlace& place : nvrtc_places()) {
    const std::string without = place.refused.empty() ? "no NVRTC there" : place.refused;
    tried.push_back({std::move(place), false, without});
    for (const std::string& library : std::vector(tried.back().place.libraries))
      if (auto opened = attempt(library)) return opened;
  }
  return fail(ErrorCode::kNoCompiler, not_found_sentence(tried));
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::open(const std::string& path) {
  // Never destroyed: threads may still compile when the process exits.
  static auto& opened = *new std::map<std::string, std::shared_ptr<const Nvrtc>>;
  {
    const std::scoped_lock lock(process_mutex(ProcessWide::kNvrtcs));
    if (const auto found = opened.find(path); found != opened.end()) return found->second;
  }
  // Without the mutex, because a library of 100 MB may lie behind a network. Threads that load it
  // at once all get the first one's.
  auto nvrtc = load(path);
  if (!nvrtc) return nvrtc;
  const std::scoped_lock lock(process_mutex(ProcessWide::kNvrtcs));
  return opened.emplace(path, std::move(*nvrtc)).first->second;
}

Result<std::shared_ptr<const Nvrtc>> Nvrtc::load(const std::string& path) {
  const auto opened = cache::open_library(path);
  if (!opened)
    return fail(ErrorCode::kNoCompiler,
                fmt::format("NVRTC \"{}\" cannot be opened: {}", path, opened.error()));
  void* const library = *opened;
  auto impl = std::make_unique<Impl>();
#define OCTILE_RESOLVE(name)                                                   \
  impl->api.name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name)); \
  if (impl->api.name == nullptr)                                               \
    return fail(ErrorCode::kNoCompiler,                                        \
                fmt::format("\"{}\" is not NVRTC: it does not export " #name, path));
  OCTILE_NVRTC_FUNCTIONS(OCTILE_RESOLVE)
#undef OCTILE_RESOLVE
  CudaRelease& version = impl->version;
  if (const nvrtcResult result = impl->api.nvrtcVersion(&version.major, &version.minor);
      result != NVRTC_SUCCESS)
    return fail(ErrorCode::kNoCompiler, fmt::format("NVRTC \"{}\" does not say its version: {}",
                                                    path, impl->error_text(result)));
  if (version < kMinimumVersion)
    return fail(ErrorCode::kNoCompiler,
                fmt::format("NVRTC \"{}\" is {}.{}; {}.{} or newer is needed", path, version.major,
                            version.minor, kMinimumVersion.major, kMinimumVersion.minor));
  NvrtcIdentity& identity = impl->identity;
  identity.major = version.major;
  identity.minor = version.minor;
  identity.path = loaded_file(reinterpret_cast<const void*>(impl->api.nvrtcVersion));

  // NVRTC opens its builtins by name on the first compile. Opening them here by their path makes
  // the loader's search path irrelevant, and the digest is that of the file in use.
  std::string builtins = fmt::format("{}libnvrtc-builtins.so.{}.{}",
                                     identity.path.substr(0, identity.path.rfind('/') + 1),
                                     version.major, version.minor);
  if (cache::open_library(builtins)) identity.builtins_path = std::move(builtins);
  identity.files = files_text(identity);
  keep_freed_memory();
  return std::shared_ptr<const Nvrtc>(new Nvrtc(std::move(impl)));
}

// Fails if this NVRTC is older than the architecture that is asked for.
Status Nvrtc::check_architecture(const std::string& name,
                                 std::span<const std::string> options) const {
  for (const std::string_view option : options) {
    if (!option.starts_with(kArchitectureOption)) continue;
    const std::string_view arch = option.substr(kArchitectureOption.size());
    const CudaRelease first = first_nvrtc(arch);
    if (impl_->version < first)
      return fail(ErrorCode::kNoCompiler,
                  fmt::format("{} for {} needs NVRTC {}.{} or newer, and \"{}\" is {}.{}: set "
                              "OCTILE_LIBNVRTC to the path of a newer libnvrtc.so",
                              name, arch, first.major, first.minor, identity().path,
                              impl_->version.major, impl_->version.minor));
  }
  return {};
}

Result<CubinAndLog> Nvrtc::compile_to_cubin(const std::string& name, const std::string& source,
                                            std::span<const std::string> options) const {
  if (const Status can = check_architecture(name, options); !can)
    return tl::unexpected(can.error());
  const NvrtcApi& api = impl_->api;
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());
  if (std::ranges::find(options, kReportOption) == options.end())
    arguments.push_back(kReportOption);
  if (impl_->version >= kComputeCacheVersion) arguments.push_back(kNoComputeCacheOption);

  CubinAndLog output;
  const auto start = std::chrono::steady_clock::now();
  Program program(api);
  nvrtcResult result =
      api.nvrtcCreateProgram(program.out(), source.c_str(), name.c_str(), 0, nullptr, nullptr);
  if (result == NVRTC_SUCCESS)
    result = api.nvrtcCompileProgram(program.get(), static_cast<int>(arguments.size()),
                                     arguments.data());
  if (program.get() != nullptr) output.log = read_log(api, program.get());
  const CompileLog log = parse_compile_log(output.log);
  if (result == NVRTC_ERROR_OUT_OF_MEMORY)
    return fail(ErrorCode::kOutOfMemory,
                fmt::format("{} has no memory to compile {}", identity().version_text(), name));
  if (!log.insufficient_registers.empty())
    return fail(ErrorCode::kCompileFailed,
                fmt::format("{} needs more registers than its launch bounds leave: {}", name,
                            log.insufficient_registers));
  if (result != NVRTC_SUCCESS)
    return fail(ErrorCode::kCompileFailed,
                fmt::format("{} does not compile {} ({}):\n{}", identity().version_text(), name,
                            impl_->error_text(result), output.log));

  std::size_t bytes = 0;
  result = api.nvrtcGetCUBINSize(program.get(), &bytes);
  if (result == NVRTC_SUCCESS) {
    output.cubin.resize(bytes);
    result = api.nvrtcGetCUBIN(program.get(), reinterpret_cast<char*>(output.cubin.data()));
  }
  if (result != NVRTC_SUCCESS || bytes == 0)
    return fail(ErrorCode::kCompileFailed,
                fmt::format("{} gives no cubin for {} ({}): is its architecture a real one (sm_*)?",
                            identity().version_text(), name, impl_->error_text(result)));
  output.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();

  return output;
}

Result<CompileOutput> Nvrtc::compile(const std::string& name, const std::string& source,
                                     std::span<const std::string> options) const {
  auto compiled = compile_to_cubin(name, source, options);
  if (!compiled) return tl::unexpected(compiled.error());
  return read_output(std::move(*compiled));
}

}  // namespace octile
