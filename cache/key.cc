#include "cache/key.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace octile::cache {

std::string key_text(const Identity& id) {
  std::string text = fmt::format("entry {}\narch {}\n", id.entry_name, id.architecture);
  for (const std::string& option : id.options) text += fmt::format("option {}\n", option);
  text += fmt::format("source {}\n", id.source.size());
  return text + id.source;
}

std::string digest_hex(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace octile::cache
