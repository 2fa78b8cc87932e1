// The parts that a family of kernels brings to run. Its folder has one file for each of: arguments,
// complete, resolve, launch. runtime/reference and runtime/prove have the rest. All families use
// the same function names.
#pragma once

#include <concepts>
#include <cstdint>

#include "generator/core/device_spec.h"
#include "generator/core/error.h"
#include "generator/core/family.h"
#include "runtime/launch/kernel_registry.h"
#include "runtime/launch/launch_kernel.h"

namespace octile {

// Every family's family.h specialises it for its problem:
//   Arguments  what a caller gives to one call
//   Call       one call, complete: what the host executor and the launch read
//   Resolved   what the launches of one kernel need, resolved once when the kernel is prepared
//   kRunCall   the function of the C API that runs a plan
template <typename Problem>
struct RuntimeFamily;

// The problem whose calls have these arguments, as the member `type`.
template <typename Arguments>
struct ProblemOf;

template <typename Arguments>
concept CallArguments = requires { typename ProblemOf<Arguments>::type; };

template <typename Problem>
using ArgumentsOf = typename RuntimeFamily<Problem>::Arguments;
template <typename Problem>
using CallOf = typename RuntimeFamily<Problem>::Call;
template <typename Problem>
using ResolvedOf = typename RuntimeFamily<Problem>::Resolved;

// The functions of a family:
//   complete(problem, args)                    the call; checks all arguments but the workspace
//   call.has_work()                            false if it writes nothing
//   tokens_of(call)                            its token count
//   kernel_tokens_of(call)                     the count by which its kernel is chosen
//   run_on_host(problem, call)                 the host reference, in place of a launch
//   resolve(problem, config, device, loaded)   what the kernel's launches need
//   workspace_bytes(problem, device, tokens)   the workspace of a call, whichever kernel serves it
//   resolved.workspace_bytes(tokens)           the same of a prepared kernel
//   enqueue(site, resolved, call)              checks the workspace and enqueues the launches
template <typename P>
concept RuntimeKernelFamily =
    requires(const P& problem, const ConfigOf<P>& config, const ArgumentsOf<P>& args,
             const CallOf<P>& call, const ResolvedOf<P>& resolved, const DeviceSpec& device,
             const LoadedKernel& loaded, const LaunchSite& site, std::int64_t tokens) {
      { RuntimeFamily<P>::kRunCall } -> std::convertible_to<const char*>;
      { complete(problem, args) } -> std::same_as<Result<CallOf<P>>>;
      { call.has_work() } -> std::same_as<bool>;
      { tokens_of(call) } -> std::same_as<std::int64_t>;
      { kernel_tokens_of(call) } -> std::same_as<std::int64_t>;
      { run_on_host(problem, call) } -> std::same_as<Status>;
      { resolve(problem, config, device, loaded) } -> std::same_as<ResolvedOf<P>>;
      { workspace_bytes(problem, device, tokens) } -> std::same_as<std::int64_t>;
      { resolved.workspace_bytes(tokens) } -> std::same_as<std::int64_t>;
      { enqueue(site, resolved, call) } -> std::same_as<Status>;
    };

}  // namespace octile
