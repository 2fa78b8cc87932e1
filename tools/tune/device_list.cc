#include "tools/tune/device_list.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "runtime/driver/driver.h"
#include "tools/command.h"

namespace octile::tools {

Result<std::optional<std::vector<int>>> read_devices(const std::string& text) {
  if (text == "all") return std::optional<std::vector<int>>();
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (bool more = true; more; ++at) {
    int number = -1;
    const auto [stop, error] = std::from_chars(at, end, number);
    at = stop;
    if (error != std::errc() || number < 0 || (at != end && *at != ','))
      return refuse(fmt::format(
          "--devices is '{}'; allowed: all, or numbers of GPUs with commas, such as 0,1", text));
    if (std::ranges::find(numbers, number) != numbers.end())
      return refuse(fmt::format("--devices is '{}', which names GPU {} twice; allowed: each once",
                                text, number));
    numbers.push_back(number);
    more = at != end;
  }
  return std::optional(std::move(numbers));
}

std::string device_name(int number) { return fmt::format("cuda:{}", number); }

std::string device_names(const std::vector<int>& numbers) {
  std::vector<std::string> names;
  for (const int number : numbers) names.push_back(device_name(number));
  return fmt::format("{}", fmt::join(names, ","));
}

Result<UsableDevices> usable_devices(const std::string& text,
                                     const std::optional<std::vector<int>>& numbers) {
  const auto driver = Driver::open();
  if (!driver) return tl::unexpected<Error>(needs_gpu("tune", driver.error()));
  const int count = (*driver)->device_count();
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int> used = numbers.value_or(std::move(all));
  if (std::ranges::max(used) >= count)
    return refuse(fmt::format(
        "--devices is '{}', and the GPUs that are visible have the numbers 0 to {}; allowed: "
        "those, or all",
        text, count - 1));
  auto first = device_spec(device_name(used.front()));
  if (!first) return tl::unexpected<Error>(first.error());
  for (const int number : used) {
    const auto spec = device_spec(device_name(number));
    if (!spec) return tl::unexpected<Error>(spec.error());
    if (spec->name == first->name && spec->sm_count == first->sm_count) continue;
    return refuse(fmt::format(
        "--devices is '{}', and cuda:{} is {} with {} SMs, but cuda:{} is {} with {}; allowed: "
        "GPUs of one kind, because a record holds for one; other kinds in a run of their own",
        text, used.front(), first->name, first->sm_count, number, spec->name, spec->sm_count));
  }
  return UsableDevices{std::move(used), std::move(*first)};
}

}  // namespace octile::tools
