// A plan: a problem and a device, standing for every token count, and the kernels prepared for it.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "generator/families.h"
#include "generator/core/error.h"
#include "generator/core/layout.h"
#include "octile/octile.h"
#include "runtime/families/gemm/launch.h"
#include "runtime/families/quantize/launch.h"
#include "runtime/engine/library.h"
#include "runtime/engine/target.h"

namespace octile {

// A kernel ready for a plan: compiled, and loaded where the plan's device is live. Immutable.
struct PreparedKernel {
  KernelConfig config;
  Built built;
  CUcontext primary = nullptr;  // null: the device is a name only
  std::variant<GemmLaunch, QuantizeLaunch> launch;
};

// Problem and device never change; the table bucket -> kernel is published entry by entry, so that
// running takes no lock. A kernel of a plan is right for every token count, hence any entry may
// serve any bucket. Kernels live as long as the plan.
class Plan : public std::enable_shared_from_this<Plan> {
 public:
  static constexpr int kBuckets = kTokenBuckets;
  using BucketMask = std::bitset<kBuckets>;
  using ChosenFor = std::array<std::optional<ChosenBy>, kBuckets>;

  // The library outlives the plan's last background job. Errors: kUnsupported, kInvalidArgument.
  static Result<std::shared_ptr<Plan>> create(Library& library, Problem problem, Target target);

  // See octile_plan_prepare. Legal while streams capture: kernels are loaded by the library's own
  // threads, in the relaxed capture mode, which neither a global nor a thread-local capture
  // forbids.
  Status prepare(std::int64_t lo, std::int64_t hi, bool async);
  Status wait();

  // See octile_gemm_run, octile_quantize_run. No lock, no allocation, nothing formatted on success.
  Status run(const octile_gemm_args& user, CUstream stream) const;
  Status run(const octile_quantize_args& user, CUstream stream) const;
  // See octile_scale_update_run.
  Status run(const octile_scale_update_args& args, CUstream stream) const;

  Result<std::size_t> workspace_bytes(std::int64_t tokens) const;
  // See octile_plan_quantized_layout.
  Result<QuantizedLayout> quantized_layout(std::int64_t rows, std::int64_t groups,
                                           bool transposed) const;

  struct Description {
    const PreparedKernel* kernel = nullptr;
    BucketMask buckets;   // it serves now
    ChosenFor chosen_by;  // of those buckets; nothing where it serves until another is ready
  };
  std::vector<Description> kernels() const;

  const Problem& problem() const { return problem_; }
  const Target& target() const { return target_; }

 private:
  // A configuration, the buckets it is the choice of, and by what.
  struct Group {
    KernelConfig config;
    BucketMask buckets;
    ChosenFor chosen_by;
  };

  Plan(Library& library, Problem problem, Target target);

  std::vector<Group> missing(int first_bucket, int last_bucket) const;
  std::vector<Group> groups_of(BucketMask buckets, const cache::TuningSet& records) const;
  Status prepare_now(const std::vector<Group>& groups);
  void prepare_later(const std::vector<Group>& groups);
  Status make(const Group& group);
  Status make_chosen(const Group& group);
  void publish(PreparedKernel kernel, const Group& group);
  void serve_meanwhile(int first_bucket, int last_bucket);
  void background_done(const Status& status);
  Error cannot_run(std::int64_t tokens, CUstream stream) const;
  Error wrong_family(const char* call) const;
  Status fill_zero(const GemmProblem& problem, const octile_gemm_args& args, CUstream stream) const;

  Library& library_;
  const Problem problem_;
  const Target target_;
  std::array<std::atomic<const PreparedKernel*>, kBuckets> table_{};

  mutable std::mutex mutex_;  // of everything below
  std::vector<std::unique_ptr<const PreparedKernel>> kernels_;
  BucketMask settled_;   // buckets that have the kernel chosen for them
  ChosenFor chosen_by_;  // of the settled ones
  std::condition_variable background_idle_;
  int background_jobs_ = 0;
  Status background_error_;
};

}  // namespace octile
