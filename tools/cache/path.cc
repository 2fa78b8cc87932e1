// octile cache path: prints the folders of the cache.
#include <fmt/format.h>

#include <memory>

#include "runtime/api/boundary.h"
#include "tools/cache/verbs.h"
#include "tools/common/output.h"

namespace octile::tools::verbs {
namespace {

Status run(bool json) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const cache::StoreOptions& store = library->get()->library.engine.store().options();
  if (json) {
    print_json({{"root", store.writable_root}, {"read_only_roots", store.read_only_roots}});
    return {};
  }
  print_stdout("{}\n", store.writable_root);
  for (const std::string& root : store.read_only_roots) print_stdout("{} (read only)\n", root);
  return {};
}

}  // namespace

Command add_path(CLI::App& cache) {
  CLI::App* app =
      add_subcommand(cache, "path", "print the folders of the cache, the writable one first");
  auto json = std::make_shared<bool>(false);
  add_json_option(*app, *json);
  return {app, [json] { return run(*json); }};
}

}  // namespace octile::tools::verbs
