#include "tools/doctor/surroundings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <utility>

#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/base/environment.h"
#include "runtime/compiler/compiler_pool.h"
#include "runtime/driver/device.h"
#include "runtime/driver/driver.h"
#include "runtime/proof/prover.h"
#include "tools/cache/libarchive.h"
#include "tools/common/terminal.h"
#include "tools/doctor/cache_folder.h"

namespace octile::tools {
namespace {

constexpr const char* kCompiler = "compiler";

void look_at_driver(Surroundings& s) {
  const auto driver = Driver::open();
  if (!driver) {
    s.missing.push_back({"driver", driver.error().message,
                         "kernels are generated, compiled and cached, and the host's reference "
                         "executor stands in for a launch"});
    return;
  }
  s.driver_path = (*driver)->path();
  s.driver_version = (*driver)->version_text();
  for (int ordinal = 0; ordinal < (*driver)->device_count(); ++ordinal) {
    const auto spec = query_device(**driver, ordinal);
    if (spec) s.devices.push_back({ordinal, *spec, check_device(*spec).has_value()});
  }
  if (s.first_usable() == nullptr) {
    const std::string why = s.devices.empty() ? "the driver has no device"
                                              : check_device(s.devices[0].spec).error().message;
    s.missing.push_back({"device", why, "as without a driver"});
  }
}

void look_at_compiler(Surroundings& s) {
  s.compiler_program = CompilerPool([](const std::string&) {}).program().value_or("");
  const auto nvrtc = Nvrtc::open(&s.nvrtc_trials);
  if (!nvrtc) {
    s.missing.push_back(
        {kCompiler, nvrtc.error().message, "only kernels that are in a cache can be had"});
    return;
  }
  s.nvrtc_path = (*nvrtc)->identity().path;
  s.nvrtc_version = fmt::format("{}.{}", (*nvrtc)->identity().major, (*nvrtc)->identity().minor);
}

// Returns the system's reason that a program does not start, as far as its file tells.
std::string why_not_started(const std::string& program) {
  std::error_code error;
  if (std::filesystem::is_directory(program, error)) return "it is a folder";
  if (::access(program.c_str(), X_OK) == 0) return {};
  return std::generic_category().message(errno);
}

void look_at_prover(Surroundings& s) {
  if (auto program = prover_program()) {
    const std::string why = why_not_started(*program);
    s.why_no_prover = why.empty()
                          ? ""
                          : fmt::format("\"{}\" cannot be started: {}; {}", *program, why,
                                        environment_value("OCTILE_PROVER")
                                            ? "unset OCTILE_PROVER, or name octile-prover by it"
                                            : "install octile-prover beside the library");
    if (why.empty()) s.prover_program = std::move(*program);
  } else {
    s.why_no_prover = std::move(program.error());
  }
}

void look_at_cache(const LibraryHandle& library, Surroundings& s) {
  const cache::StoreOptions& store = library.get()->library.engine.store().options();
  s.cache_root = store.writable_root;
  s.read_only_roots = store.read_only_roots;
  const CacheFolder folder = look_at_cache_folder(s.cache_root);
  s.cache_writable = folder.why_not.empty();
  if (!s.cache_writable) {
    s.missing.push_back({"cache", folder.why_not, "every process compiles its kernels again"});
  }
  if (!folder.advice.empty()) s.advice.push_back(folder.advice);
  for (const std::string& root : s.read_only_roots) {
    if (const std::string why = why_unread(root); !why.empty())
      s.advice.push_back(fmt::format("the read-only cache root {}", why));
  }
}

// A cubin of one major version of CUDA is for drivers of that version or a later one.
void compare_versions(Surroundings& s) {
  if (s.driver_version.empty() || s.nvrtc_version.empty()) return;
  const auto major = [](const std::string& version) {
    int number = 0;
    std::from_chars(version.data(), version.data() + version.size(), number);
    return number;
  };
  if (major(s.driver_version) >= major(s.nvrtc_version)) return;
  s.missing.push_back(
      {"driver that is new enough",
       fmt::format("the driver is for CUDA {}, and NVRTC {} compiles cubins that it does not load; "
                   "update the driver, or name an NVRTC of CUDA {} from 12.8 on by OCTILE_LIBNVRTC",
                   s.driver_version, s.nvrtc_version, major(s.driver_version)),
       "kernels are compiled and cannot be loaded"});
}

void look_at_archives(Surroundings& s) {
  if (const auto library = LibArchive::open(); !library) {
    s.missing.push_back({"libarchive", library.error().message,
                         "archives of kernels can be neither written nor read"});
  }
}

Json searched_json(const Surroundings& s) {
  Json places = Json::array();
  for (const NvrtcTrial& trial : s.nvrtc_trials) {
    places.push_back({{"folder", trial.place.folder.empty() ? Json() : Json(trial.place.folder)},
                      {"why", trial.place.why},
                      {"taken", trial.taken},
                      {"outcome", trial.outcome}});
  }
  return places;
}

}  // namespace

const FoundDevice* Surroundings::first_usable() const {
  for (const FoundDevice& device : devices) {
    if (device.usable) return &device;
  }
  return nullptr;
}

Surroundings look_around(const LibraryHandle& library) {
  Surroundings s;
  look_at_driver(s);
  look_at_compiler(s);
  look_at_prover(s);
  look_at_cache(library, s);
  look_at_archives(s);
  compare_versions(s);
  s.bad_settings = environment_warnings();
  s.tuning = library.get()->library.engine.records()->sources();
  return s;
}

Json to_json(const Surroundings& s) {
  const auto found = [](const std::string& path, const std::string& version) {
    if (path.empty()) return Json{{"found", false}};
    return Json{{"found", true}, {"path", path}, {"version", version}};
  };
  Json devices = Json::array();
  for (const FoundDevice& d : s.devices) {
    Json refused = Json::object();
    for (const RefusedOperation& r : refused_operations(d.spec)) refused.set(r.operation, r.reason);
    devices.push_back({{"device", fmt::format("cuda:{}", d.ordinal)},
                       {"name", d.spec.full_name},
                       {"arch", d.spec.arch()},
                       {"sm_count", d.spec.sm_count},
                       {"usable", d.usable},
                       {"without_kernels", refused}});
  }
  Json tuning = Json::array();
  for (const cache::TuningSet::Source& source : s.tuning) {
    tuning.push_back({{"origin", source.origin}, {"records", source.records}});
  }
  Json missing = Json::array();
  for (const Missing& m : s.missing) {
    missing.push_back({{"what", m.what}, {"why", m.why}, {"cost", m.cost}});
  }
  Json nvrtc = found(s.nvrtc_path, s.nvrtc_version);
  nvrtc.set("searched", searched_json(s));
  return {{"driver", found(s.driver_path, s.driver_version)},
          {"devices", devices},
          {"nvrtc", nvrtc},
          {"compiler_program", s.compiler_program.empty() ? Json() : Json(s.compiler_program)},
          {"prover_program", s.prover_program.empty() ? Json() : Json(s.prover_program)},
          {"cache",
           {{"root", s.cache_root},
            {"writable", s.cache_writable},
            {"read_only_roots", s.read_only_roots}}},
          {"tuning", tuning},
          {"bad_settings", s.bad_settings},
          {"advice", s.advice},
          {"missing", missing}};
}

std::string nvrtc_search_text(const Surroundings& s) {
  std::string text;
  for (const NvrtcTrial& trial : s.nvrtc_trials) {
    text += trial.place.folder.empty() ? fmt::format("  {}: {}\n", trial.place.why, trial.outcome)
                                       : fmt::format("  {} ({}): {}\n", trial.place.folder,
                                                     trial.place.why, trial.outcome);
  }
  return text;
}

std::string missing_text(const Surroundings& s) {
  std::string text;
  for (const Missing& m : s.missing) {
    // The sentence of a search that found nothing repeats every place.
    const bool listed = m.what == kCompiler && s.nvrtc_trials.size() > 1;
    const std::string why =
        listed ? "no place listed above has an NVRTC that can be used; name the library in "
                 "OCTILE_LIBNVRTC or a CUDA toolkit in CUDA_HOME, or install the Python package "
                 "nvidia-cuda-nvrtc"
               : m.why;
    text += wrapped(fmt::format("  no {}: {}", m.what, why), line_width(), 4) + "\n";
    text += wrapped("    what that costs: " + m.cost, line_width(), 6) + "\n";
  }
  return text;
}

}  // namespace octile::tools
