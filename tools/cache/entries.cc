#include "tools/cache/entries.h"

#include <fmt/format.h>

namespace octile::tools {

const std::string& digest_of(const cache::Listing& listing) { return listing.stem.identity; }

Json to_json(const cache::Listing& listing) {
  Json object{{"digest", digest_of(listing)}, {"path", listing.path}, {"bytes", listing.bytes}};
  if (!listing.head) {
    object["damaged"] = listing.head.error();
    return object;
  }
  const cache::Head& head = *listing.head;
  const cache::Metadata& m = head.metadata;
  object.update({{"name", head.entry_name},
                 {"architecture", head.architecture},
                 {"problem", m.problem},
                 {"config", m.config},
                 {"toolchain", head.toolchain.text()},
                 {"threads", m.threads},
                 {"cluster", m.cluster_size},
                 {"registers", m.registers},
                 {"smem_bytes", m.static_smem_bytes + m.dynamic_smem_bytes},
                 {"spill_store_bytes", m.spill_store_bytes},
                 {"spill_load_bytes", m.spill_load_bytes},
                 {"stack_bytes", m.stack_bytes},
                 {"parameter_bytes", m.parameter_bytes},
                 {"compile_ms", m.compile_ms},
                 {"cubin_bytes", head.cubin_bytes},
                 {"date", m.date}});
  return object;
}

Result<const cache::Listing*> find_entry(const std::vector<cache::Listing>& entries,
                                         const std::vector<cache::UnreadPart>& unread,
                                         const std::string& prefix) {
  const cache::Listing* found = nullptr;
  int matches = 0;
  for (const cache::Listing& listing : entries) {
    if (!digest_of(listing).starts_with(prefix)) continue;
    found = &listing;
    ++matches;
  }
  if (matches == 1) return found;
  if (matches == 0 && !unread.empty()) {
    return fail(
        ErrorCode::kInternal,
        fmt::format("none of the {} entries that could be read begins with '{}'; not read: {}",
                    entries.size(), prefix, unread.front().sentence));
  }
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("digest is '{}', with which {} of the {} entries begin; allowed: the first "
                  "digits of exactly one, see `octile cache list`",
                  prefix, matches == 0 ? "none" : std::to_string(matches), entries.size()));
}

}  // namespace octile::tools
