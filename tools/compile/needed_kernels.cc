#include "tools/compile/needed_kernels.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "generator/families.h"
#include "runtime/engine/test_kernels.h"
#include "runtime/launch/argument_checks.h"

namespace octile::tools {
namespace {

// The kernel that serves one bucket of one problem.
struct Need {
  const Problem& problem;
  std::optional<std::int64_t> bucket;  // none of a known-answer test
  KernelConfig config;
  ChosenBy by = ChosenBy::kModel;
};

void add_use(const Need& need, std::vector<KernelUse>& uses) {
  auto use = std::ranges::find(uses, need.problem, &KernelUse::problem);
  if (use == uses.end()) use = uses.insert(use, {need.problem, {}, {}});
  if (!need.bucket || std::ranges::find(use->buckets, *need.bucket) != use->buckets.end()) return;
  use->buckets.push_back(*need.bucket);
  use->chosen_by.push_back(need.by);
}

Status add(const Need& need, const DeviceSpec& device, NeededKernels& kernels) {
  const auto emitted = emit(need.problem, need.config, device, embedded_templates());
  if (!emitted) return tl::unexpected<Error>(emitted.error());
  cache::Identity identity = identity_of(*emitted, device);
  const std::string digest = cache::digest_hex(cache::key_text(identity));
  NeededKernel& kernel =
      kernels.try_emplace(digest, NeededKernel{need.config, std::move(identity), {}, false})
          .first->second;
  kernel.is_tested = kernel.is_tested || !need.bucket;
  add_use(need, kernel.uses);
  return {};
}

// Returns the device as it may turn out to be: with the units that are trusted today, and, if their
// tests pass on the card, with all of them.
std::vector<DeviceSpec> outcomes_of(const DeviceSpec& device) {
  std::vector<DeviceSpec> outcomes = {device};
  if (const DeviceSpec all = device.with_all_units(); all != device) outcomes.push_back(all);
  return outcomes;
}

Status add_work(const Work& work, const DeviceSpec& device, Engine& engine,
                NeededKernels& kernels) {
  for (const TokenRange& range : work.tokens) {
    for (const std::int64_t count : {range.lo, range.hi}) {
      if (Status ok = check_tokens(token_axis(work.problem), "--tokens", count); !ok) return ok;
    }
    if (is_empty(work.problem)) continue;
    for (int bucket = bucket_of(range.lo); bucket <= bucket_of(range.hi); ++bucket) {
      const std::int64_t tokens = bucket_upper(bucket);
      Choice choice = engine.choose_config(work.problem, tokens, device);
      const Need need{work.problem, tokens, std::move(choice.config), choice.by};
      if (Status ok = add(need, device, kernels); !ok) return ok;
    }
  }
  return {};
}

}  // namespace

Result<NeededKernels> needed_kernels(const std::vector<Work>& works, const DeviceSpec& device,
                                     Engine& engine) {
  NeededKernels kernels;
  const std::vector<DeviceSpec> outcomes = outcomes_of(device);
  for (const Work& work : works) {
    if (Status ok = check_supported(work.problem, outcomes.back()); !ok) {
      return tl::unexpected<Error>(ok.error());
    }
    for (const DeviceSpec& outcome : outcomes) {
      if (!check_supported(work.problem, outcome)) continue;
      if (Status ok = add_work(work, outcome, engine, kernels); !ok) {
        return tl::unexpected<Error>(ok.error());
      }
    }
  }
  for (const TestKernel& test : test_kernels(device)) {
    const Need need{test.problem, std::nullopt, test.config, ChosenBy::kModel};
    if (Status ok = add(need, device, kernels); !ok) return tl::unexpected<Error>(ok.error());
  }
  return kernels;
}

Result<NeededKernels> model_kernels(const NeededKernel& kernel, const DeviceSpec& device) {
  NeededKernels kernels;
  for (const KernelUse& use : kernel.uses) {
    for (const std::int64_t bucket : use.buckets) {
      const Need need{use.problem, bucket, default_config(use.problem, bucket, device),
                      ChosenBy::kModel};
      if (Status ok = add(need, device, kernels); !ok) return tl::unexpected<Error>(ok.error());
    }
  }
  return kernels;
}

}  // namespace octile::tools
