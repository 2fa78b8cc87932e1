#include "tools/cache/filter.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "generator/core/device_spec.h"
#include "generator/core/nearest.h"
#include "generator/core/recipe.h"
#include "generator/families.h"
#include "runtime/base/environment.h"
#include "tools/cache/entries.h"
#include "tools/cache/served.h"
#include "tools/command.h"
#include "tools/command_line/command_line.h"
#include "tools/models/workload.h"

namespace octile::tools {
namespace {

using cache::Listing;
using Predicate = EntryFilter::Predicate;

struct Unit {
  std::string_view suffix;
  std::int64_t factor;
};

// Reads a number and one of the units. Returns nothing for any other text, or if the value
// overflows.
template <std::size_t N>
std::optional<std::int64_t> scaled(std::string_view text, const std::array<Unit, N>& units) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const Unit& unit : units) {
    if (suffix != unit.suffix) continue;
    if (number > std::numeric_limits<std::int64_t>::max() / unit.factor) return std::nullopt;
    return number * unit.factor;
  }
  return std::nullopt;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

bool has_types_of(const std::string& text, const Recipe& recipe) {
  const auto problem = parse_problem(text);
  return problem && octile::has_types_of(*problem, recipe);
}

Result<std::string> architecture_of(const std::string& device) {
  if (device.starts_with("sm_")) return device;
  if (const DeviceSpec* spec = find_device(device)) return spec->arch();
  const std::vector<std::string_view> known = known_device_names();
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--device is '{}'{}; allowed: {}, or an architecture such as {}", device,
                          did_you_mean(device, known), fmt::join(known, ", "),
                          known_devices().front().arch()));
}

// Returns what entries can be for: the devices with kernels, and their architectures.
std::vector<std::string> devices_and_architectures() {
  std::vector<std::string> names = supported_devices();
  const std::size_t devices = names.size();
  for (std::size_t i = 0; i < devices; ++i) {
    const std::string architecture = find_device(names[i])->arch();
    if (std::ranges::find(names, architecture) == names.end()) names.push_back(architecture);
  }
  return names;
}

// Returns the date as entries store it, in RFC 3339 and UTC, which sorts as text.
std::string date_text(std::chrono::system_clock::time_point when) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(when)));
}

// Returns a test of entries that can be read; a damaged entry fails it.
template <typename Test>
Predicate on_entry(Test test) {
  return [test](const Listing& listing) { return listing.head && test(*listing.head); };
}

Predicate has_problem(const std::string& words) {
  return [patterns = words_of(words)](const Listing& listing) {
    return serves_problem_with(listing, patterns);
  };
}

Result<Predicate> is_for_device(const std::string& device) {
  return architecture_of(device).map([](const std::string& architecture) {
    return on_entry(
        [architecture](const cache::Head& head) { return head.architecture == architecture; });
  });
}

Result<Predicate> is_of_recipe(const std::string& name) {
  const auto found = recipe_of_option(name);
  if (!found) return tl::unexpected<Error>(found.error());
  return on_entry([recipe = *found](const cache::Head& head) {
    return has_types_of(head.metadata.problem, *recipe);
  });
}

enum class Side { kBelow, kAbove };

// Compares the date of the compile with the time `age` ago.
Result<Predicate> by_date(const std::string& age, std::string_view option, Side side,
                          std::chrono::system_clock::time_point now) {
  return parse_duration(age, option).map([&](std::chrono::seconds seconds) {
    return on_entry([edge = date_text(now - seconds), side](const cache::Head& head) {
      return side == Side::kBelow ? head.metadata.date < edge : head.metadata.date > edge;
    });
  });
}

Result<Predicate> by_size(const std::string& size, std::string_view option, Side side) {
  return parse_size(size, option).map([side](std::int64_t bytes) -> Predicate {
    return [bytes, side](const Listing& listing) {
      return side == Side::kBelow ? listing.bytes < bytes : listing.bytes > bytes;
    };
  });
}

}  // namespace

Result<std::chrono::seconds> parse_duration(std::string_view text, std::string_view option) {
  static constexpr std::array kUnits{Unit{"s", 1}, Unit{"m", 60}, Unit{"h", 3600}, Unit{"d", 86400},
                                     Unit{"w", 604800}};
  // A century. A longer time cannot be subtracted from today's date.
  constexpr std::int64_t kMost = std::int64_t{36525} * 86400;
  const auto seconds = scaled(text, kUnits);
  if (seconds && *seconds <= kMost) return std::chrono::seconds(*seconds);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is '{}'; allowed: a whole number followed by s, m, h, d or w, such "
                          "as 30d, up to 36525d",
                          option, text));
}

Result<std::int64_t> parse_size(std::string_view text, std::string_view option) {
  if (const auto bytes = parse_bytes(text)) return *bytes;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is '{}'; allowed: {}", option, text, kBytesRule));
}

void EntryFilter::add_to(CLI::App& app) {
  add_option(app, "--problem", problem,
             "entries that serve a problem with all these words; * and ? match as in a shell: "
             "'gemm n=7168 a=e4m3:*'");
  add_option(app, "--device", device,
             fmt::format("entries for this device or architecture: {}",
                         fmt::join(devices_and_architectures(), ", ")))
      .complete_with(devices_and_architectures);
  add_option(app, "--recipe", recipe, "entries with the types of a recipe: " + recipe_names())
      .complete_with(recipe_name_list);
  add_option(app, "--older-than", older_than,
             "entries compiled longer ago: 90s, 15m, 12h, 30d, 2w");
  add_option(app, "--newer-than", newer_than, "entries compiled more recently");
  add_option(app, "--larger-than", larger_than, "entries of more bytes: 4096, 64K, 2M");
  add_option(app, "--smaller-than", smaller_than, "entries of fewer bytes");
}

Result<Predicate> EntryFilter::predicate(std::chrono::system_clock::time_point now) const {
  std::vector<Result<Predicate>> wanted;
  if (!problem.empty()) wanted.emplace_back(has_problem(problem));
  if (!device.empty()) wanted.push_back(is_for_device(device));
  if (!recipe.empty()) wanted.push_back(is_of_recipe(recipe));
  if (!older_than.empty()) wanted.push_back(by_date(older_than, "--older-than", Side::kBelow, now));
  if (!newer_than.empty()) wanted.push_back(by_date(newer_than, "--newer-than", Side::kAbove, now));
  if (!larger_than.empty()) wanted.push_back(by_size(larger_than, "--larger-than", Side::kAbove));
  if (!smaller_than.empty())
    wanted.push_back(by_size(smaller_than, "--smaller-than", Side::kBelow));

  std::vector<Predicate> tests;
  for (Result<Predicate>& test : wanted) {
    if (!test) return tl::unexpected<Error>(test.error());
    tests.push_back(std::move(*test));
  }
  return Predicate([tests = std::move(tests)](const Listing& listing) {
    return std::ranges::all_of(tests, [&](const Predicate& test) { return test(listing); });
  });
}

Result<Selection> EntryFilter::select(cache::Store& store) const {
  const auto wanted = predicate(std::chrono::system_clock::now());
  if (!wanted) return tl::unexpected<Error>(wanted.error());
  Selection selection;
  std::vector<cache::UnreadPart> unread;
  selection.entries = store.list(&unread);
  for (cache::UnreadPart& part : unread) selection.unread.push_back(std::move(part.sentence));
  std::erase_if(selection.entries, [&](const Listing& listing) {
    if ((*wanted)(listing)) return false;
    if (!listing.head && !listing.other_version && asks_content())
      selection.unjudged.push_back(sentence_of(listing, listing.head.error()));
    return true;
  });
  return selection;
}

bool EntryFilter::asks_content() const {
  return !problem.empty() || !device.empty() || !recipe.empty() || !older_than.empty() ||
         !newer_than.empty();
}

std::vector<std::string> Selection::missing() const {
  std::vector<std::string> all = unread;
  all.insert(all.end(), unjudged.begin(), unjudged.end());
  return all;
}

}  // namespace octile::tools
