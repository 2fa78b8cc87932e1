// A plan: a problem on a device, for every token count, and the kernels prepared for it.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "generator/core/token_buckets.h"
#include "octile/octile.h"
#include "runtime/driver/buffer.h"
#include "runtime/engine/library.h"
#include "runtime/engine/target.h"
#include "runtime/families/families.h"

namespace octile {

// A kernel ready for a plan: compiled, and loaded if the plan's device is live. Immutable.
struct PreparedKernel {
  KernelConfig config;
  Built built;
  CUcontext primary = nullptr;  // null if the device is only a name
  ResolvedKernel resolved;
};

// Problem and device never change. The table from buckets to kernels is published entry by entry,
// so that running takes no lock. Every kernel of a plan is correct for every token count, so any
// entry may serve any bucket. Kernels live as long as the plan.
class Plan : public std::enable_shared_from_this<Plan> {
 public:
  static constexpr int kBuckets = kTokenBuckets;
  using BucketMask = std::bitset<kBuckets>;
  using ChosenFor = std::array<std::optional<ChosenBy>, kBuckets>;

  // The library outlives the plan's last background job. Errors: kUnsupported, kInvalidArgument.
  static Result<std::shared_ptr<Plan>> create(Library& library, Problem problem, Target target);

  // Checks a range of token counts. Errors: kInvalidArgument, naming lo or hi.
  Status check_range(std::int64_t lo, std::int64_t hi) const;
  // See octile_plan_prepare. Legal while streams capture: the library's own threads load the
  // kernels, in the relaxed capture mode, which no capture of another thread forbids.
  Status prepare(std::int64_t lo, std::int64_t hi, bool async);
  Status wait();

  // Has the next prepare choose again for the buckets of a range, by the records of then. Until it
  // has, they keep the kernels that serve them. The range is one that prepare takes.
  void reconsider(std::int64_t lo, std::int64_t hi);
  // Has one of the pool's threads do work of this plan, which wait() waits for and whose error it
  // returns. The work gets no plan that was destroyed before it began; it sees by the pointer
  // whether the plan was destroyed since.
  void do_later(WorkerPool& pool, std::function<Status(const std::weak_ptr<Plan>&)> work);
  // Returns true if a run has said kCapturing since this was last asked. Whoever asks prepares the
  // plan in the midst of a capture.
  bool was_wanted_in_capture() { return wanted_in_capture_.exchange(false); }

  // A plan and the token counts that it is prepared for.
  struct Range {
    Plan* plan = nullptr;
    std::int64_t lo = 0, hi = 0;
  };
  // Prepares several plans of a library, all their kernels in parallel.
  static Status prepare_all(Library& library, std::span<const Range> ranges);

  // See octile_gemm_run, octile_quantize_run. A call that succeeds takes no lock, allocates nothing
  // and formats nothing. Defined in plan_run.h.
  template <CallArguments Arguments>
  Status run(const Arguments& args, CUstream stream) const;
  // See octile_scale_update_run.
  Status run(const octile_scale_update_args& given, CUstream stream) const;
  // Launches a step of pieces with the kernel that is ready (runtime/pieces). The plan's device is
  // not the host.
  Status run(const PiecesCall& call, CUstream stream) const;
  // Copies bytes to new memory of the plan's device, which is live and has a kernel, and returns
  // once they are there. Legal while streams capture. release() frees the memory.
  Result<DeviceBuffer> to_device(const void* bytes, std::size_t count) const;
  void release(DeviceBuffer buffer) const;
  // Returns what run would say of a call of this many tokens whose kernel is not ready.
  Status check_ready(std::int64_t tokens, CUstream stream) const;
  // Zeroes memory in the order of the stream, as a call of no tokens would. Errors: as check_ready.
  Status clear(void* memory, std::size_t bytes, CUstream stream) const;

  Result<std::size_t> workspace_bytes(std::int64_t tokens) const;
  // See octile_plan_quantized_layout.
  Result<QuantizedLayout> quantized_layout(std::int64_t rows, std::int64_t groups,
                                           bool transposed) const;

  struct Description {
    const PreparedKernel* kernel = nullptr;
    BucketMask buckets;   // the buckets that it serves now
    ChosenFor chosen_by;  // nothing for a bucket that it serves only until another kernel is ready
  };
  std::vector<Description> kernels() const;

  const Problem& problem() const { return problem_; }
  const TokenAxis& axis() const { return axis_; }
  const Target& target() const { return target_; }

 private:
  // A configuration, the buckets it was chosen for, and what chose it.
  struct Group {
    KernelConfig config;
    BucketMask buckets;
    ChosenFor chosen_by;
  };

  // A kernel that prepare makes.
  struct Job {
    Plan* plan = nullptr;
    Group group;
  };

  Plan(Library& library, Problem problem, Target target);

  Result<std::vector<Group>> missing(int first_bucket, int last_bucket);
  Status find_device();
  std::vector<Group> groups_of(BucketMask buckets, const cache::TuningSet& records) const;
  // The configurations of a range that are still to be made, the largest bucket's first.
  Result<std::vector<Group>> missing_of(std::int64_t lo, std::int64_t hi);
  static Status make_all(Library& library, const std::vector<Job>& jobs);
  void make_later(const Group& group);
  Status make(const Group& group);
  Status make_chosen(const Group& group);
  void publish(PreparedKernel kernel, const Group& group);
  void serve_meanwhile(int first_bucket, int last_bucket);
  void background_done(Status status);

  const PreparedKernel* kernel_for(std::int64_t tokens) const;
  const PreparedKernel* any_kernel() const;
  template <typename Launch>
  Status on_device(const PreparedKernel& kernel, CUstream stream, const Launch& launch) const;
  Error cannot_run(std::int64_t tokens, CUstream stream) const;
  Error wrong_operation(const char* call) const;

  Library& library_;
  const Problem problem_;
  const TokenAxis axis_;
  const Target target_;
  std::array<std::atomic<const PreparedKernel*>, kBuckets> table_{};
  mutable std::atomic<bool> wanted_in_capture_ = false;

  mutable std::mutex mutex_;  // guards everything below
  // The device as configurations are chosen for it, once the first is: without matrix units that
  // compute wrong.
  std::optional<DeviceSpec> device_;
  bool device_is_final_ = false;  // all of it is tested
  std::vector<std::unique_ptr<const PreparedKernel>> kernels_;
  BucketMask settled_;   // buckets that have the kernel chosen for them
  ChosenFor chosen_by_;  // what chose it, for settled buckets
  std::condition_variable background_idle_;
  int background_jobs_ = 0;
  Status background_error_;
};

}  // namespace octile
