#include "tools/cache/served.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>

#include "generator/core/device_spec.h"
#include "generator/core/text_fields.h"
#include "generator/families.h"
#include "runtime/engine/engine.h"

namespace octile::tools {
namespace {

bool matches_a_word(const std::string& pattern, const std::vector<std::string_view>& words) {
  return std::ranges::any_of(words, [&](std::string_view word) {
    return ::fnmatch(pattern.c_str(), std::string(word).c_str(), 0) == 0;
  });
}

// "n=512", "m=?" and "m=_" say a field; "a=e4m3:*" and "n=7?68" are patterns.
bool is_field(const std::string& word) {
  const std::size_t equals = word.find('=');
  if (equals == std::string::npos || equals == 0) return false;
  const std::string_view value = std::string_view(word).substr(equals + 1);
  return leaves_open(value) || value.find_first_of("*?[") == std::string_view::npos;
}

// Returns the digest of the kernel that the problem has with the configuration.
std::optional<std::string> digest_for(const Problem& problem, const std::string& config_text,
                                      const DeviceSpec& device) {
  const auto config = parse_config(problem, config_text);
  if (!config) return std::nullopt;
  const auto kernel = emit(problem, *config, device, embedded_templates());
  if (!kernel) return std::nullopt;
  return cache::digest_hex(cache::key_text(identity_of(*kernel, device)));
}

}  // namespace

std::string with_fields(std::string_view problem, const std::vector<std::string>& words) {
  std::vector<std::string> all;
  for (const std::string_view word : split_words(problem)) all.emplace_back(word);
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('=') + 1);
    const auto field =
        std::ranges::find_if(all, [&](const std::string& own) { return own.starts_with(name); });
    if (field == all.end()) {
      all.push_back(word);
    } else {
      *field = word;
    }
  }
  std::string text;
  for (const std::string& word : all) text.append(text.empty() ? "" : " ").append(word);
  return text;
}

bool serves_problem_with(const cache::Listing& listing, const std::vector<std::string>& patterns) {
  if (!listing.head) return false;
  const std::string& own = listing.head->metadata.problem;
  const auto own_words = split_words(own);
  std::vector<std::string> others;
  for (const std::string& pattern : patterns) {
    if (matches_a_word(pattern, own_words)) continue;
    if (!is_field(pattern)) return false;
    others.push_back(pattern);
  }
  if (others.empty()) return true;
  const auto problem = parse_problem(with_fields(own, others));
  if (!problem || !check_supported(*problem)) return false;
  return std::ranges::any_of(known_devices(), [&](const DeviceSpec& device) {
    return device.arch() == listing.head->architecture &&
           digest_for(*problem, listing.head->metadata.config, device) == listing.stem.identity;
  });
}

}  // namespace octile::tools
