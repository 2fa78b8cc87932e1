#include "tools/cache/entries.h"

#include <fmt/format.h>

namespace octile::tools {

const char* word_of(const cache::EntryError& error) { return error.unread ? "unread" : "damaged"; }

std::string sentence_of(const cache::Listing& listing, const cache::EntryError& error) {
  return error.unread ? error.sentence : fmt::format("{}: {}", listing.path, error.sentence);
}

const std::string& digest_of(const cache::Listing& listing) { return listing.stem.identity; }

Json to_json(const cache::Listing& listing) {
  Json object{{"digest", digest_of(listing)}, {"path", listing.path}, {"bytes", listing.bytes}};
  if (!listing.head) {
    const cache::EntryError& error = listing.head.error();
    object.set(word_of(error), error.sentence);
    return object;
  }
  const cache::Head& head = *listing.head;
  const cache::Metadata& m = head.metadata;
  object.add("name", head.entry_name)
      .add("architecture", head.architecture)
      .add("problem", m.problem)
      .add("config", m.config)
      .add("toolchain", head.toolchain.text())
      .add("threads", m.threads)
      .add("cluster", m.cluster_size)
      .add("registers", m.registers)
      .add("smem_bytes", m.static_smem_bytes + m.dynamic_smem_bytes)
      .add("spill_store_bytes", m.spill_store_bytes)
      .add("spill_load_bytes", m.spill_load_bytes)
      .add("stack_bytes", m.stack_bytes)
      .add("parameter_bytes", m.parameter_bytes)
      .add("compile_ms", m.compile_ms)
      .add("cubin_bytes", head.cubin_bytes)
      .add("date", m.date);
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
