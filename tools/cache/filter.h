// Which entries of the kernel cache a verb of `octile cache` is about.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"
#include "generator/core/error.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own name
class App;
}

namespace octile::tools {

// An entry passes where it meets everything that is not empty. A damaged entry has no problem,
// device, recipe or date, so of these it meets none.
struct EntryFilter {
  std::string
      problem;  // words of the canonical text, all of which must occur; * and ? as in a shell
  std::string device;                     // name of a known device, or an architecture
  std::string recipe;                     // whose types the problem has
  std::string older_than, newer_than;     // durations, by the date of the compile
  std::string larger_than, smaller_than;  // sizes of the file

  void add_to(CLI::App& app);

  using Predicate = std::function<bool(const cache::Listing&)>;
  // Errors: kInvalidArgument, naming the option.
  Result<Predicate> predicate(std::chrono::system_clock::time_point now) const;
  // The store's entries that pass today, in its order. Errors: those of predicate().
  Result<std::vector<cache::Listing>> select(cache::Store& store) const;
};

// "90s", "15m", "12h", "30d", "2w". `option` is for the error.
Result<std::chrono::seconds> parse_duration(std::string_view text, std::string_view option);

// "4096", "64K", "200M", "5G": powers of 1024.
Result<std::int64_t> parse_size(std::string_view text, std::string_view option);

}  // namespace octile::tools
