#include "runtime/api/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/api/boundary.h"
#include "runtime/driver/stream.h"
#include "runtime/tuner/device_decider.h"
#include "runtime/tuner/here.h"

namespace octile::api {
namespace {

// How a call searches, if it does.
struct Search {
  bool is_wanted = false;    // by the caller or the environment
  bool is_required = false;  // by the caller
  std::optional<double> seconds;
};

Search search_of(const Library& library, const PrepareRequest& request) {
  if (request.tune) return {true, true, request.seconds};
  return {library.tuning.prepare, false, library.tuning.seconds};
}

// Returns why the ranges cannot be searched now.
Status check_searchable(std::span<const Plan::Range> ranges, CUstream stream,
                        bool wanted_in_capture) {
  const Target& target = ranges.front().plan->target();
  if (target.kind == TargetKind::kNamed)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("flags has OCTILE_PREPARE_TUNE and the device is \"{}\", a name to "
                            "compile for; allowed with a live device, \"cuda\" or \"cuda:N\"",
                            target.text));
  if (wanted_in_capture)
    return fail(ErrorCode::kCapturing,
                "the last run said OCTILE_CAPTURING, and nothing is searched in a capture; "
                "allowed: preparing without OCTILE_PREPARE_TUNE, or before the capture begins");
  return check_may_search(target, stream);
}

tuner::PlanTuning tuning_of(Library& library, const Target& target, const Search& search) {
  tuner::PlanTuning tuning;
  tuning.seconds = search.seconds;
  tuning.make_decider = [&library, device = target.text] {
    return tuner::DeviceDecider::open(library, device, library.engine.options().writable_root, {});
  };
  return tuning;
}

Status prepare_only(Library& library, std::span<const Plan::Range> ranges, bool async) {
  if (!async) return Plan::prepare_all(library, ranges);
  const auto& [plan, lo, hi] = ranges.front();
  return plan->prepare(lo, hi, true);
}

// Returns the sentence's error, or nothing and a message if the caller has not asked.
Status fails(Library& library, const Search& search, LogLevel level, const Error& error) {
  if (search.is_required) return tl::unexpected<Error>(error);
  library.logger.log(level,
                     fmt::format("OCTILE_TUNING=prepare searches nothing: {}", error.message));
  return {};
}

Status prepare_searched(Library& library, std::span<const Plan::Range> ranges, bool async,
                        const Search& search) {
  const tuner::PlanTuning tuning = tuning_of(library, ranges.front().plan->target(), search);
  if (async) {
    if (Status ok = prepare_only(library, ranges, true); !ok) return ok;
    tuner::tune_plan_later(library, ranges.front(), tuning);
    return {};
  }
  Status searched = tuner::tune_plans(library, ranges, tuning);
  if (!searched) searched = fails(library, search, LogLevel::kWarning, searched.error());
  Status prepared = prepare_only(library, ranges, false);
  return prepared ? searched : prepared;
}

}  // namespace

Result<PrepareRequest> read_prepare_flags(std::uint32_t flags) {
  constexpr std::uint32_t kKnown = OCTILE_PREPARE_ASYNC | OCTILE_PREPARE_TUNE;
  if ((flags & ~kKnown) != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("flags is {:#x}; allowed: OCTILE_PREPARE_DEFAULT (0), or a sum of "
                            "OCTILE_PREPARE_ASYNC (1) and OCTILE_PREPARE_TUNE (2)",
                            flags));
  return PrepareRequest{(flags & OCTILE_PREPARE_ASYNC) != 0, (flags & OCTILE_PREPARE_TUNE) != 0,
                        std::nullopt, nullptr};
}

Result<PrepareRequest> read_prepare_options(const octile_prepare_options* user) {
  octile_prepare_options options{};
  if (user != nullptr)
    if (Status ok = read_struct("options", user, options); !ok)
      return tl::unexpected<Error>(ok.error());
  auto request = read_prepare_flags(options.flags);
  if (!request) return request;
  // The condition also refuses a NaN.
  if (!(options.tune_seconds >= 0) || !(options.tune_seconds <= kMostSearchSeconds))
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("options->tune_seconds is {}; allowed: 0 (what the searches need) to {}",
                    options.tune_seconds, kMostSearchSeconds));
  if (!request->tune && (options.tune_seconds != 0 || options.stream != nullptr))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("options->{} is given; allowed with OCTILE_PREPARE_TUNE in flags only",
                            options.tune_seconds != 0 ? "tune_seconds" : "stream"));
  if (options.tune_seconds > 0) request->seconds = options.tune_seconds;
  request->stream = static_cast<CUstream>(options.stream);
  return request;
}

Status check_may_search(const Target& target, CUstream stream) {
  if (target.kind != TargetKind::kLive) return {};
  for (const CUstream one : {stream, CUstream{nullptr}, CU_STREAM_PER_THREAD}) {
    if (!is_capturing(*target.driver, one)) continue;
    return fail(
        ErrorCode::kCapturing,
        fmt::format("{} is capturing, and nothing is searched in a capture; allowed: before "
                    "the capture begins, or after it",
                    one == stream && stream != nullptr
                        ? "stream"
                        : "a default stream, or one that it would wait for,"));
  }
  return {};
}

Status prepare(Library& library, std::span<const Plan::Range> ranges,
               const PrepareRequest& request) {
  for (const Plan::Range& range : ranges)
    if (Status ok = range.plan->check_range(range.lo, range.hi); !ok) return ok;
  bool wanted_in_capture = false;
  for (const Plan::Range& range : ranges)
    wanted_in_capture = range.plan->was_wanted_in_capture() || wanted_in_capture;
  const Search search = search_of(library, request);
  if (!search.is_wanted || ranges.empty() ||
      ranges.front().plan->target().kind == TargetKind::kHost)
    return prepare_only(library, ranges, request.async);
  Status may = check_searchable(ranges, request.stream, wanted_in_capture);
  if (may && !library.engine.options().tuning)
    may = fail(ErrorCode::kInvalidArgument,
               "flags has OCTILE_PREPARE_TUNE and OCTILE_TUNING is off, so that no decision would "
               "serve; allowed: one of the two");
  if (may) return prepare_searched(library, ranges, request.async, search);
  if (Status ok = fails(library, search, LogLevel::kInfo, may.error()); !ok) return ok;
  return prepare_only(library, ranges, request.async);
}

}  // namespace octile::api
