// octile cache: inspects and maintains the kernel cache. Each verb is one file of tools/cache/.
#include <memory>
#include <vector>

#include "tools/cache/verbs.h"
#include "tools/command.h"

namespace octile::tools {

Command add_cache(CLI::App& root) {
  CLI::App* app = add_group(
      root, "cache", "inspect and maintain the kernel cache",
      "Exit status: 0 done, 1 failed, 2 bad usage; 3 `why` foresees a miss, `show`, `verify` and "
      "`export` met damaged entries, or these and `list` could not read all; 4 `verify "
      "--recompile` got other bytes; 130 interrupted. See octile-cache(1).");
  const auto verbs = std::make_shared<const std::vector<Command>>(
      std::vector<Command>{verbs::add_path(*app), verbs::add_config(*app), verbs::add_list(*app),
                           verbs::add_show(*app), verbs::add_verify(*app), verbs::add_why(*app),
                           verbs::add_export(*app), verbs::add_import(*app), verbs::add_prune(*app),
                           verbs::add_clear(*app), verbs::add_stats(*app)});
  return {app, [verbs]() -> Result<int> {
            for (const Command& verb : *verbs) {
              if (is_given(*verb.app)) return verb.run();
            }
            return 0;  // not reached: one verb is required
          }};
}

}  // namespace octile::tools
