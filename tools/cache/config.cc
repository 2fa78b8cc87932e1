// octile cache config: prints every setting of the cache, its value and the value's source.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/api/boundary.h"
#include "runtime/base/environment.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"
#include "tools/common/text_table.h"

namespace octile::tools::verbs {
namespace {

constexpr std::string_view kDefault = "default";

struct ConfigOptions {
  bool wide = false;
  bool json = false;
};

struct Setting {
  std::string name;
  std::string value;
  std::string source;    // "default", or the variable that gave the value
  std::string variable;  // that sets it; empty if none does
};

Setting by_variable(std::string name, std::string value, const char* variable) {
  const bool set = environment_decides(variable);
  return {std::move(name), std::move(value), std::string(set ? variable : kDefault), variable};
}

// Returns the variable that default_root() used; a relative XDG_CACHE_HOME counts as unset.
std::string source_of_root() {
  const auto value = [](const char* name) { return environment_value(name).value_or(""); };
  if (!octile::cache::default_root(value("OCTILE_CACHE_DIR"), "", "").empty()) {
    return "OCTILE_CACHE_DIR";
  }
  if (!octile::cache::default_root("", value("XDG_CACHE_HOME"), "").empty()) {
    return "XDG_CACHE_HOME";
  }
  return octile::cache::default_root("", "", value("HOME")).empty() ? std::string(kDefault)
                                                                    : "HOME";
}

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("{}", fmt::join(parts, ":"));
}

std::vector<Setting> settings(Library& library) {
  const octile::cache::StoreOptions& store = library.engine.store().options();
  const EngineOptions& engine = library.engine.options();
  return {
      {"root", store.writable_root, source_of_root(), "OCTILE_CACHE_DIR"},
      by_variable("read_only_roots", joined(store.read_only_roots), "OCTILE_CACHE_ROOTS"),
      by_variable("max_bytes",
                  store.bound.max_bytes > 0 ? std::to_string(store.bound.max_bytes) : "no bound",
                  "OCTILE_CACHE_MAX_BYTES"),
      by_variable("offline", engine.offline ? "on" : "off", "OCTILE_OFFLINE"),
      by_variable("tuning", to_text(library.tuning), "OCTILE_TUNING"),
      by_variable("compiler", environment_value("OCTILE_LIBNVRTC").value_or("searched"),
                  "OCTILE_LIBNVRTC"),
      {"strict", store.strict ? "on" : "off", std::string(kDefault), ""},
      {"protect_seconds", std::to_string(store.bound.protect.count()), std::string(kDefault), ""},
      {"lock_timeout_ms", std::to_string(store.lock_timeout.count()), std::string(kDefault), ""},
  };
}

Status run_config(const ConfigOptions& options) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const std::vector<Setting> all = settings(library->get()->library);
  if (options.json) {
    Json array = Json::array();
    for (const Setting& s : all) {
      array.push_back({{"setting", s.name},
                       {"value", s.value},
                       {"source", s.source},
                       {"variable", s.variable}});
    }
    print_json(array);
    return {};
  }
  TextTable table({"<setting", "<value", "<from", "<set by"});
  table.cut("value", 20).leave_out({"from"});
  for (const Setting& s : all) {
    table.add_row({s.name, s.value.empty() ? "none" : s.value, s.source,
                   s.variable.empty() ? "-" : s.variable});
  }
  print_table(table, options.wide);
  return {};
}

}  // namespace

Command add_config(CLI::App& cache) {
  CLI::App* app =
      add_subcommand(cache, "config", "print every setting, its value and the value's source");
  auto options = std::make_shared<ConfigOptions>();
  add_wide_option(*app, options->wide);
  add_json_option(*app, options->json);
  return {app, [options] { return run_config(*options); }};
}

}  // namespace octile::tools::verbs
