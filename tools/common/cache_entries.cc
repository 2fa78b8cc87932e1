#include "tools/common/cache_entries.h"

#include <fmt/format.h>

#include <filesystem>

#include "cache/file_name.h"

namespace octile::tools {

std::string digest_of(const cache::Listing& listing) {
  const auto name = cache::parse_file_name(std::filesystem::path(listing.path).filename().string());
  return name ? name->stem.identity : std::string();
}

Json to_json(const cache::Listing& listing) {
  Json object{{"digest", digest_of(listing)}, {"path", listing.path}, {"bytes", listing.bytes}};
  if (!listing.entry) {
    object["damaged"] = listing.entry.error();
    return object;
  }
  const cache::Entry& e = *listing.entry;
  const cache::Metadata& m = e.metadata;
  object.update({{"name", e.identity.entry_name},
                 {"architecture", e.identity.architecture},
                 {"problem", m.problem},
                 {"config", m.config},
                 {"toolchain", e.toolchain.text()},
                 {"options", e.identity.options},
                 {"threads", m.threads},
                 {"cluster", m.cluster_size},
                 {"registers", m.registers},
                 {"smem_bytes", m.static_smem_bytes + m.dynamic_smem_bytes},
                 {"spill_store_bytes", m.spill_store_bytes},
                 {"spill_load_bytes", m.spill_load_bytes},
                 {"stack_bytes", m.stack_bytes},
                 {"parameter_bytes", m.parameter_bytes},
                 {"compile_ms", m.compile_ms},
                 {"cubin_bytes", e.cubin.size()},
                 {"source_bytes", e.identity.source.size()},
                 {"date", m.date}});
  return object;
}

Result<const cache::Listing*> find_entry(const std::vector<cache::Listing>& entries,
                                         const std::string& prefix) {
  const cache::Listing* found = nullptr;
  int matches = 0;
  for (const cache::Listing& listing : entries) {
    if (!digest_of(listing).starts_with(prefix)) continue;
    found = &listing;
    ++matches;
  }
  if (matches == 1) return found;
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("digest is '{}', with which {} of the {} entries begin; allowed: the first "
                  "digits of exactly one, see `octile cache list`",
                  prefix, matches == 0 ? "none" : std::to_string(matches), entries.size()));
}

}  // namespace octile::tools
