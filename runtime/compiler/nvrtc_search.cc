#include "runtime/compiler/nvrtc_search.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "cache/rights.h"
#include "runtime/base/environment.h"
#include "runtime/process/own_folder.h"

namespace octile {
namespace {

constexpr std::array<std::string_view, 2> kNames{"libnvrtc.so.13", "libnvrtc.so.12"};
// The folders in which the wheels nvidia-cuda-nvrtc (CUDA 13) and nvidia-cuda-nvrtc-cu12 install.
constexpr std::array<std::string_view, 2> kWheels{"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"};
// Debian's own Python calls its folders of packages "dist-packages".
constexpr std::array<std::string_view, 2> kPackages{"site-packages", "dist-packages"};
constexpr std::array<std::string_view, 2> kToolkitLibraries{"lib64", "lib"};

// Returns the path if it is absolute. A relative one would mean another folder after chdir().
std::string absolute_or_empty(std::string path) {
  if (!path.starts_with('/')) return {};
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string variable(std::string_view name) {
  return absolute_or_empty(environment_value(name).value_or(""));
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

// Says who chose a folder: the user, who then trusts it, or Octile by where it lies itself.
enum class Named { kByTheUser, kByNobody };

class Places {
 public:
  explicit Places(cache::FileOps& ops) : ops_(ops) {}

  // Adds a folder, unless it is there already.
  void add(const std::string& folder, const std::string& why, Named named) {
    const bool known = std::ranges::any_of(
        places_, [&](const NvrtcPlace& place) { return place.folder == folder; });
    if (folder.empty() || known) return;
    NvrtcPlace place{folder, why, {}, {}, named == Named::kByTheUser};
    for (const std::string_view name : kNames)
      if (const std::string path = fmt::format("{}/{}", folder, name); is_there(path))
        add_library(place, path, named);
    places_.push_back(std::move(place));
  }

  void add_loader() {
    places_.push_back({{}, "the loader's search", {kNames.begin(), kNames.end()}, {}, true});
  }

  void add_toolkit(const std::string& root, const std::string& why, Named named) {
    if (root.empty()) return;
    for (const std::string_view folder : kToolkitLibraries)
      add(fmt::format("{}/{}", root, folder), why, named);
  }

  // Adds NVRTC's wheels in a folder of Python packages.
  void add_packages(const std::string& packages, const std::string& why, Named named) {
    for (const std::string_view wheel : kWheels)
      if (const std::string folder = fmt::format("{}/{}", packages, wheel);
          is_there(parent(folder)))
        add(folder, why, named);
  }

  // Adds the wheels below <prefix>/lib/python3*.
  void add_python(const std::string& prefix, const std::string& why, Named named) {
    if (prefix.empty()) return;
    for (const std::string_view lib : {"lib", "lib64"}) {
      const std::string folder = fmt::format("{}/{}", prefix, lib);
      for (const std::string& name : names_in(folder)) {
        if (!name.starts_with("python3")) continue;
        for (const std::string_view packages : kPackages)
          add_packages(fmt::format("{}/{}/{}", folder, name, packages), why, named);
      }
    }
  }

  std::vector<NvrtcPlace> take() && { return std::move(places_); }

  // A link counts as being there; what it names is found out when it is opened.
  bool is_there(const std::string& path) {
    struct stat status = {};
    return ops_.stat_at(AT_FDCWD, path, status) == 0;
  }

 private:
  // The checked file is named through its folder without links, so that nobody can exchange the
  // folder between the check and the use.
  void add_library(NvrtcPlace& place, const std::string& path, Named named) {
    if (named == Named::kByTheUser) {
      place.libraries.push_back(path);
      return;
    }
    const auto folder = cache::resolve_links(place.folder);
    const auto checked = check_code(ops_, path);
    if (folder && checked) {
      place.libraries.push_back(*folder + path.substr(path.rfind('/')));
    } else if (!checked) {
      place.refused = fmt::format("\"{}\" is not opened: {}", path, checked.error().sentence);
    }
  }

  // The highest name first, so that python3.12 precedes python3.11.
  std::vector<std::string> names_in(const std::string& folder) {
    const int fd = cache::retry_interrupted(
        [&] { return ops_.open_at(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
    if (fd < 0) return {};
    const cache::OpenFile opened(ops_, fd);
    std::vector<std::string> names;
    if (ops_.list(opened.fd(), names) < 0) return {};
    std::ranges::sort(names, std::greater<>());
    return names;
  }

  cache::FileOps& ops_;
  std::vector<NvrtcPlace> places_;
};

// Returns the folder of Python packages that a folder lies in.
std::optional<std::string> packages_around(const std::string& folder) {
  for (const std::string_view packages : kPackages) {
    const std::string inside = fmt::format("/{}/", packages);
    if (const std::size_t at = folder.rfind(inside); at != std::string::npos)
      return folder.substr(0, at + inside.size() - 1);
  }
  return std::nullopt;
}

// Adds the packages of the first python3 in PATH. In a virtual environment it is a link in the
// environment's own bin. Elsewhere a link may lead to an installation, whose packages count too.
void add_python_of_path(Places& places, std::string_view path) {
  while (!path.empty()) {
    const std::size_t end = std::min(path.find(':'), path.size());
    const std::string folder = absolute_or_empty(std::string(path.substr(0, end)));
    path.remove_prefix(std::min(end + 1, path.size()));
    const std::string python = folder + "/python3";
    if (folder.empty() || !places.is_there(python)) continue;
    places.add_python(parent(folder), "python3 in PATH", Named::kByTheUser);
    const auto real = cache::resolve_links(python);
    if (!real) return;
    const std::string prefix = parent(parent(*real));
    places.add_python(prefix, "python3 in PATH", Named::kByTheUser);
    // Debian's Python has the packages of pip in /usr/local.
    if (prefix == "/usr") places.add_python("/usr/local", "python3 in PATH", Named::kByTheUser);
    return;
  }
}

}  // namespace

NvrtcHints nvrtc_hints() {
  NvrtcHints hints;
  hints.usual_toolkit = "/usr/local/cuda";
  if (cache::has_more_rights_than_caller()) return hints;
  hints.own_folder = absolute_or_empty(own_file().folder);
  hints.recorded = OCTILE_RECORDED_NVRTC_DIR;
  hints.virtual_env = variable("VIRTUAL_ENV");
  hints.search_path = environment_value("PATH").value_or("");
  hints.home = variable("HOME");
  hints.cuda_home = variable("CUDA_HOME");
  hints.cuda_path = variable("CUDA_PATH");
  return hints;
}

std::vector<NvrtcPlace> nvrtc_places(const NvrtcHints& hints, cache::FileOps& ops) {
  Places places(ops);
  if (!hints.own_folder.empty()) {
    places.add(hints.own_folder, "beside Octile", Named::kByNobody);
    const std::string libraries =
        fmt::format("{}/{}", hints.own_folder, OCTILE_PROGRAMS_TO_LIBRARY);
    if (const auto folder = cache::resolve_links(libraries))
      places.add(*folder, "beside Octile", Named::kByNobody);
  }
  places.add(hints.recorded, "recorded by the build", Named::kByNobody);
  if (const auto packages = packages_around(hints.own_folder + "/"))
    places.add_packages(*packages, "Python packages around Octile", Named::kByNobody);
  places.add_python(hints.virtual_env, "VIRTUAL_ENV", Named::kByTheUser);
  add_python_of_path(places, hints.search_path);
  if (!hints.home.empty())
    places.add_python(hints.home + "/.local", "Python packages of the user", Named::kByNobody);
  places.add_toolkit(hints.cuda_home, "CUDA_HOME", Named::kByTheUser);
  places.add_toolkit(hints.cuda_path, "CUDA_PATH", Named::kByTheUser);
  places.add_loader();
  places.add_toolkit(hints.usual_toolkit, "the usual toolkit", Named::kByNobody);
  return std::move(places).take();
}

std::vector<NvrtcPlace> nvrtc_places() {
  cache::FileOps ops;
  return nvrtc_places(nvrtc_hints(), ops);
}

std::string nvrtc_places_text(const std::vector<NvrtcPlace>& places) {
  std::string text;
  for (const NvrtcPlace& place : places)
    for (const std::string& library : place.libraries) text += "candidate " + library + "\n";
  return text;
}

}  // namespace octile
