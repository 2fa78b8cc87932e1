#include "tools/tune/tasks.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/launch/argument_checks.h"
#include "runtime/prove/families.h"

namespace octile::tools {
namespace {

using TuningTasks = Result<std::vector<tuner::TuningTask>>;

Status check_searchable(const Problem& problem) {
  if (Status ok = check_supported(problem); !ok) return ok;
  return check_operands(problem);
}

}  // namespace

std::vector<std::int64_t> bucket_counts() {
  std::vector<std::int64_t> counts;
  for (int bucket = 0; bucket <= bucket_of(kMostTokens); ++bucket)
    counts.push_back(bucket_upper(bucket));
  return counts;
}

tuner::TuningTask task_at(Problem problem, std::int64_t count) {
  return {with_dynamic_tokens(std::move(problem)), count};
}

TuningTasks tasks_of(const Problem& problem, const std::vector<std::int64_t>& counts) {
  if (Status ok = check_searchable(problem); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = check_counts(problem, counts); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<std::int64_t> asked = counts.empty() ? bucket_counts() : counts;
  if (const TokenAxis axis = token_axis(problem); !axis.is_dynamic()) asked = {axis.tokens};
  std::vector<tuner::TuningTask> tasks;
  for (const std::int64_t count : asked) {
    if (count < 1 || count > kMaxExtent) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a token count is {}; allowed: 1 to {}", count, kMaxExtent));
    }
    tasks.push_back(task_at(problem, count));
  }
  return tasks;
}

}  // namespace octile::tools
