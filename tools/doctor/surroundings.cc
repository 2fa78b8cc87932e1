#include "tools/doctor/surroundings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "runtime/api/boundary.h"
#include "runtime/compiler/compiler_pool.h"
#include "runtime/driver/device.h"
#include "runtime/driver/driver.h"
#include "tools/cache/libarchive.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;

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
    if (spec) s.devices.push_back({ordinal, *spec, spec->has_fp8_wgmma()});
  }
  if (s.first_usable() == nullptr) {
    s.missing.push_back({"device",
                         "no device has compute capability 9.0 (H100, H200, H20), the one with FP8 "
                         "WGMMA",
                         "as without a driver"});
  }
}

void look_at_compiler(Surroundings& s) {
  s.compiler_program = CompilerPool([](const std::string&) {}).program().value_or("");
  const auto nvrtc = Nvrtc::open(&s.nvrtc_trials);
  if (!nvrtc) {
    s.missing.push_back(
        {"compiler", nvrtc.error().message, "only kernels that are in a cache can be had"});
    return;
  }
  s.nvrtc_path = (*nvrtc)->identity().path;
  s.nvrtc_version = fmt::format("{}.{}", (*nvrtc)->identity().major, (*nvrtc)->identity().minor);
}

// Returns nothing if the folder, or the nearest existing folder above it, is writable.
std::string why_not_writable(const std::string& root) {
  if (root.empty()) return "neither OCTILE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set";
  std::error_code error;
  fs::path folder = fs::absolute(root, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) return fmt::format("{} is no folder", folder.string());
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return fmt::format("{}: {}", folder.string(), std::generic_category().message(errno));
}

void look_at_cache(const LibraryHandle& library, Surroundings& s) {
  const cache::StoreOptions& store = library.get()->library.engine.store().options();
  s.cache_root = store.writable_root;
  s.read_only_roots = store.read_only_roots;
  const std::string why = why_not_writable(s.cache_root);
  s.cache_writable = why.empty();
  if (!s.cache_writable) {
    s.missing.push_back({"cache", why, "every process compiles its kernels again"});
  }
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
  look_at_cache(library, s);
  look_at_archives(s);
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
    devices.push_back({{"device", fmt::format("cuda:{}", d.ordinal)},
                       {"name", d.spec.full_name},
                       {"arch", d.spec.arch()},
                       {"sm_count", d.spec.sm_count},
                       {"usable", d.usable}});
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
  nvrtc["searched"] = searched_json(s);
  return {{"driver", found(s.driver_path, s.driver_version)},
          {"devices", devices},
          {"nvrtc", nvrtc},
          {"compiler_program", s.compiler_program.empty() ? Json() : Json(s.compiler_program)},
          {"cache",
           {{"root", s.cache_root},
            {"writable", s.cache_writable},
            {"read_only_roots", s.read_only_roots}}},
          {"tuning", tuning},
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
    text += fmt::format("  no {}: {}\n    what that costs: {}\n", m.what, m.why, m.cost);
  }
  return text;
}

}  // namespace octile::tools
