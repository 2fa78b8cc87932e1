#include "tools/explain/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "generator/core/token_buckets.h"
#include "runtime/api/boundary.h"
#include "tools/common/handles.h"

namespace octile::tools {
namespace {

constexpr std::int64_t kMostCount = 16384;

std::vector<std::int64_t> counts_of(const Problem& problem) {
  if (const TokenAxis axis = token_axis(problem); !axis.is_dynamic()) return {axis.tokens};
  std::vector<std::int64_t> counts;
  for (int bucket = 0; bucket <= bucket_of(kMostCount); ++bucket)
    counts.push_back(bucket_upper(bucket));
  return counts;
}

}  // namespace

Result<std::vector<CountChoice>> choices_of(const Problem& problem, const DeviceSpec& device) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto records = library->get()->library.engine.records();
  std::vector<CountChoice> choices;
  for (const std::int64_t tokens : counts_of(problem)) {
    // As plans choose: for the bucket's largest count.
    const Choice choice = choose_config(problem, bucket_upper(bucket_of(tokens)), device, *records);
    choices.push_back({tokens, choice.by, octile::to_text(choice.config)});
  }
  return choices;
}

std::string choices_text(const std::vector<CountChoice>& choices) {
  if (choices.size() == 1)
    return fmt::format("{}: {}", name_of(choices.front().by), choices.front().config);
  // Counts that follow each other: 1 to 64.
  std::map<ChosenBy, std::vector<std::string>> runs;
  for (std::size_t first = 0; first < choices.size();) {
    std::size_t end = first + 1;
    while (end < choices.size() && choices[end].by == choices[first].by) ++end;
    runs[choices[first].by].push_back(
        end - first == 1 ? fmt::format("{}", choices[first].tokens)
                         : fmt::format("{} to {}", choices[first].tokens, choices[end - 1].tokens));
    first = end;
  }
  std::vector<std::string> parts;
  for (const auto& [by, tokens] : runs)
    parts.push_back(fmt::format("{} at {} tokens", name_of(by), fmt::join(tokens, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

Json to_json(const std::vector<CountChoice>& choices) {
  Json all = Json::array();
  for (const CountChoice& choice : choices)
    all.push_back(
        {{"tokens", choice.tokens}, {"chosen_by", name_of(choice.by)}, {"config", choice.config}});
  return all;
}

}  // namespace octile::tools
