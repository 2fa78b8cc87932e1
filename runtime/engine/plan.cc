#include "runtime/engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "generator/quantize/layout.h"
#include "runtime/base/guarded.h"

namespace octile {

Result<std::shared_ptr<Plan>> Plan::create(Library& library, Problem problem, Target target) {
  // find_device() asks again, once the units of a live device have been tested.
  const DeviceSpec device =
      target.kind == TargetKind::kLive ? target.spec.with_all_units() : target.spec;
  const Status supported = target.kind == TargetKind::kHost ? check_supported(problem)
                                                            : check_supported(problem, device);
  if (!supported) return tl::unexpected<Error>(supported.error());
  if (Status ok = check_plan_extents(problem); !ok) return tl::unexpected<Error>(ok.error());
  return std::shared_ptr<Plan>(new Plan(library, std::move(problem), std::move(target)));
}

Plan::Plan(Library& library, Problem problem, Target target)
    : library_(library),
      problem_(std::move(problem)),
      axis_(token_axis(problem_)),
      target_(std::move(target)) {}

Status Plan::prepare(std::int64_t lo, std::int64_t hi, bool async) {
  auto groups = missing_of(lo, hi);
  if (!groups) return tl::unexpected<Error>(groups.error());
  if (groups->empty()) return {};
  std::vector<Job> jobs;
  for (Group& group : *groups) jobs.push_back({this, std::move(group)});
  if (!async) return make_all(library_, jobs);
  // The largest bucket's choice is the generic kernel, because a large tile wastes less on few
  // tokens than a small one on many.
  const int first = bucket_of(lo);
  const int last = bucket_of(hi);
  const bool has_generic = !jobs.front().group.buckets.test(static_cast<std::size_t>(last));
  if (!has_generic)
    if (Status ready = make_all(library_, {jobs.front()}); !ready) return ready;
  serve_meanwhile(first, last);
  for (std::size_t i = has_generic ? 0 : 1; i < jobs.size(); ++i) make_later(jobs[i].group);
  return {};
}

Status Plan::prepare_all(Library& library, std::span<const Range> ranges) {
  std::vector<Job> jobs;
  for (const Range& range : ranges) {
    auto groups = range.plan->missing_of(range.lo, range.hi);
    if (!groups) return tl::unexpected<Error>(groups.error());
    for (Group& group : *groups) jobs.push_back({range.plan, std::move(group)});
  }
  return make_all(library, jobs);
}

Status Plan::wait() {
  std::unique_lock lock(mutex_);
  background_idle_.wait(lock, [this] { return background_jobs_ == 0; });
  return std::exchange(background_error_, {});
}

Status Plan::check_range(std::int64_t lo, std::int64_t hi) const {
  if (Status ok = check_tokens(axis_, "lo", lo); !ok) return ok;
  if (Status ok = check_tokens(axis_, "hi", hi); !ok) return ok;
  if (lo > hi)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("lo is {} and hi is {}; allowed: lo <= hi", lo, hi));
  return {};
}

Result<std::vector<Plan::Group>> Plan::missing_of(std::int64_t lo, std::int64_t hi) {
  if (Status ok = check_range(lo, hi); !ok) return tl::unexpected<Error>(ok.error());
  if (target_.kind == TargetKind::kHost || is_empty(problem_)) return std::vector<Group>();
  return missing(bucket_of(lo), bucket_of(hi));
}

// Finds out which kernels of the device are right, once all of them could be tested.
Status Plan::find_device() {
  {
    const std::scoped_lock lock(mutex_);
    if (device_ && device_is_final_) return {};
  }
  DeviceSpec device = target_.spec;
  bool is_final = true;
  if (target_.kind == TargetKind::kLive) {
    const auto trusted = library_.trusted_devices.of(library_, target_);
    const bool multiplies = problem_as<GemmProblem>(problem_) != nullptr;
    if (!trusted->any) return trusted->any;
    if (multiplies && !trusted->multiplies) return trusted->multiplies;
    if (multiplies) device = trusted->device;
    is_final = trusted->is_final;
  }
  // A unit that is not trusted may have been the only one of which the problem has kernels.
  if (Status ok = check_supported(problem_, device); !ok) return ok;
  const std::scoped_lock lock(mutex_);
  device_ = std::move(device);
  device_is_final_ = is_final;
  return {};
}

// Returns the configurations still to be made.
Result<std::vector<Plan::Group>> Plan::missing(int first_bucket, int last_bucket) {
  BucketMask open;
  for (int bucket = first_bucket; bucket <= last_bucket; ++bucket)
    open.set(static_cast<std::size_t>(bucket));
  {
    const std::scoped_lock lock(mutex_);
    open &= ~settled_;
  }
  if (open.none()) return std::vector<Group>();  // the records' files are not looked at
  if (Status ok = find_device(); !ok) return tl::unexpected<Error>(ok.error());
  return groups_of(open, *library_.engine.records());
}

// Returns the distinct configurations of these buckets, the largest bucket's first.
std::vector<Plan::Group> Plan::groups_of(BucketMask buckets,
                                         const cache::TuningSet& records) const {
  std::vector<Group> groups;
  const DeviceSpec device = [this] {
    const std::scoped_lock lock(mutex_);
    return *device_;
  }();
  for (int bucket = kBuckets - 1; bucket >= 0; --bucket) {
    const auto at = static_cast<std::size_t>(bucket);
    if (!buckets.test(at)) continue;
    Choice choice = choose_config(problem_, bucket_upper(bucket), device, records);
    auto group = std::ranges::find(groups, choice.config, &Group::config);
    if (group == groups.end()) group = groups.insert(group, {std::move(choice.config), {}, {}});
    group->buckets.set(at);
    group->chosen_by[at] = choice.by;
  }
  return groups;
}

// Makes all in parallel. Returns the first error in the order of the jobs, after all have ended.
Status Plan::make_all(Library& library, const std::vector<Job>& jobs) {
  std::vector<Status> results(jobs.size());
  library.workers.run(jobs.size(), [&](std::size_t i) {
    results[i] = guarded([&] { return jobs[i].plan->make(jobs[i].group); });
  });
  const auto failed = std::ranges::find_if(results, [](const Status& s) { return !s; });
  return failed == results.end() ? Status{} : *failed;
}

void Plan::make_later(const Group& group) {
  do_later(library_.workers, [group](const std::weak_ptr<Plan>& weak) -> Status {
    const std::shared_ptr<Plan> plan = weak.lock();
    return plan == nullptr ? Status{} : plan->make(group);
  });
}

// The job is counted once nothing can keep it from running: wait() waits for every counted job.
void Plan::do_later(WorkerPool& pool, std::function<Status(const std::weak_ptr<Plan>&)> work) {
  WorkerPool::Job job = [weak = weak_from_this(), work = std::move(work)] {
    if (weak.expired()) return;
    Status status = guarded([&] { return work(weak); });
    if (const std::shared_ptr<Plan> plan = weak.lock()) plan->background_done(std::move(status));
  };
  {
    const std::scoped_lock lock(mutex_);
    ++background_jobs_;
  }
  pool.submit(std::move(job));
}

void Plan::reconsider(std::int64_t lo, std::int64_t hi) {
  const std::scoped_lock lock(mutex_);
  for (int bucket = bucket_of(lo); bucket <= bucket_of(hi); ++bucket)
    settled_.reset(static_cast<std::size_t>(bucket));
}

void Plan::background_done(Status status) {
  const std::scoped_lock lock(mutex_);
  if (!status && background_error_) background_error_ = std::move(status);
  if (--background_jobs_ == 0) background_idle_.notify_all();
}

// Makes the kernel of a group. Records are advisory: if the kernel of a recorded configuration does
// not compile, or is not in the cache of a host that compiles nothing, the cost model's serves.
Status Plan::make(const Group& group) {
  Status made = make_chosen(group);
  const auto by_record = [](const auto& by) { return by && *by != ChosenBy::kModel; };
  if (made || std::ranges::none_of(group.chosen_by, by_record)) return made;
  for (const Group& other : groups_of(group.buckets, cache::TuningSet()))
    if (Status ok = make_chosen(other); !ok) return made;
  library_.logger.log(LogLevel::kWarning,
                      fmt::format("a tuning record's configuration is not used, the cost model's "
                                  "is: {}",
                                  made.error().message));
  return {};
}

// Compile or find -> load -> resolve -> publish, for the buckets of one configuration.
Status Plan::make_chosen(const Group& group) {
  ReadyKernel ready;
  if (target_.kind == TargetKind::kLive) {
    auto answer = build_and_load(library_, target_, problem_, group.config, target_.spec);
    if (!answer) return tl::unexpected<Error>(answer.error());
    ready = std::move(*answer);
  } else {
    auto built = library_.engine.build(problem_, group.config, target_.spec);
    if (!built) return tl::unexpected<Error>(built.error());
    ready.built = std::move(*built);
  }
  publish({group.config, std::move(ready.built), ready.loaded.primary,
           resolve(problem_, group.config, target_.spec, ready.loaded)},
          group);
  return {};
}

void Plan::publish(PreparedKernel kernel, const Group& group) {
  const std::scoped_lock lock(mutex_);
  auto same = std::ranges::find_if(
      kernels_, [&](const auto& known) { return known->config == kernel.config; });
  if (same == kernels_.end())
    same = kernels_.insert(same, std::make_unique<const PreparedKernel>(std::move(kernel)));
  const PreparedKernel* ready = same->get();
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (!group.buckets.test(bucket)) continue;
    table_[bucket].store(ready);
    chosen_by_[bucket] = group.chosen_by[bucket];
  }
  settled_ |= group.buckets;
}

// Gives the kernel of the range's largest bucket to the buckets without one.
void Plan::serve_meanwhile(int first_bucket, int last_bucket) {
  const std::scoped_lock lock(mutex_);
  const PreparedKernel* generic = table_[static_cast<std::size_t>(last_bucket)].load();
  for (int bucket = first_bucket; bucket < last_bucket; ++bucket) {
    auto& entry = table_[static_cast<std::size_t>(bucket)];
    if (entry.load() == nullptr) entry.store(generic);
  }
}

Result<std::size_t> Plan::workspace_bytes(std::int64_t tokens) const {
  if (Status ok = check_tokens(axis_, "tokens", tokens); !ok)
    return tl::unexpected<Error>(ok.error());
  if (target_.kind == TargetKind::kHost) return std::size_t{0};
  return static_cast<std::size_t>(octile::workspace_bytes(problem_, target_.spec, tokens));
}

Result<QuantizedLayout> Plan::quantized_layout(std::int64_t rows, std::int64_t groups,
                                               bool transposed) const {
  const auto* quantize = problem_as<QuantizeProblem>(problem_);
  if (quantize == nullptr)
    return tl::unexpected<Error>(wrong_operation("octile_plan_quantized_layout"));
  if (Status ok = check_tokens(axis_, "rows", rows); !ok) return tl::unexpected<Error>(ok.error());
  if (Status ok = check_layout_query(*quantize, groups, transposed); !ok)
    return tl::unexpected<Error>(ok.error());
  return octile::quantized_layout(*quantize, rows, groups, transposed);
}

std::vector<Plan::Description> Plan::kernels() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Description> all;
  for (const auto& kernel : kernels_) {
    Description description{kernel.get(), {}, chosen_by_};
    for (std::size_t bucket = 0; bucket < kBuckets; ++bucket)
      if (table_[bucket].load() == kernel.get()) description.buckets.set(bucket);
    all.push_back(description);
  }
  return all;
}

}  // namespace octile
