// Options that select entries of the kernel cache.
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

// Entries of a store that pass a filter, and what could not be asked.
struct Selection {
  std::vector<cache::Listing> entries;
  std::vector<std::string> unread;  // a sentence for each root or folder that could not be read
  // A sentence for each damaged entry that lacks a field of the filter: whether it would pass is
  // unknown.
  std::vector<std::string> unjudged;

  // Returns all sentences: some entries may be missing from the selection.
  std::vector<std::string> missing() const;
};

// An entry passes if it meets every field that is not empty. A damaged entry has no problem,
// device, recipe or date, so it fails each of these.
struct EntryFilter {
  std::string problem;  // words that the canonical text must have; * and ? match as in a shell
  std::string device;   // name of a known device, or an architecture
  std::string recipe;   // the problem has its types
  std::string older_than, newer_than;     // durations since the compile
  std::string larger_than, smaller_than;  // sizes of the entry's file

  void add_to(CLI::App& app);

  using Predicate = std::function<bool(const cache::Listing&)>;
  // Errors: kInvalidArgument, naming the option.
  Result<Predicate> predicate(std::chrono::system_clock::time_point now) const;
  // Returns the store's entries that pass now, in the store's order. Errors: those of predicate().
  Result<Selection> select(cache::Store& store) const;

 private:
  bool asks_content() const;
};

// Reads "90s", "15m", "12h", "30d", "2w". The error names `option`.
Result<std::chrono::seconds> parse_duration(std::string_view text, std::string_view option);

// Reads "4096", "64K", "200M", "5G"; units are powers of 1024.
Result<std::int64_t> parse_size(std::string_view text, std::string_view option);

}  // namespace octile::tools
