// What a family of kernels gives to run. Its folder has one file for each of: arguments, resolve,
// launch. runtime/reference and runtime/prove have the rest. All families use the same function
// names.
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
using ResolvedOf = typename RuntimeFamily<Problem>::Resolved;

// The functions of a family:
//   tokens_of(args)                            the call's token count
//   expected_tokens_of(args)                   the count by which its kernel is chosen
//   check_arguments(problem, args)             checks all else and fills in leading dimensions
//   is_nothing(problem, args)                  true if the call has nothing to do
//   run_on_host(problem, args)                 the host reference, in place of a launch
//   resolve(problem, config, device, loaded)   what the kernel's launches need
//   workspace_bytes(problem, device, tokens)   the workspace of a call, whichever kernel serves it
//   resolved.workspace_bytes(tokens)           the same of a prepared kernel
//   launch(site, resolved, args)               enqueues one call
template <typename P>
concept RuntimeKernelFamily =
    requires(const P& problem, const ConfigOf<P>& config, ArgumentsOf<P>& args,
             const ResolvedOf<P>& resolved, const DeviceSpec& device, const LoadedKernel& loaded,
             const LaunchSite& site, std::int64_t tokens) {
      { RuntimeFamily<P>::kRunCall } -> std::convertible_to<const char*>;
      { args.workspace } -> std::convertible_to<const void*>;
      { args.workspace_bytes } -> std::convertible_to<std::size_t>;
      { tokens_of(args) } -> std::same_as<std::int64_t>;
      { expected_tokens_of(args) } -> std::same_as<std::int64_t>;
      { check_arguments(problem, args) } -> std::same_as<Status>;
      { is_nothing(problem, args) } -> std::same_as<bool>;
      { run_on_host(problem, args) } -> std::same_as<Status>;
      { resolve(problem, config, device, loaded) } -> std::same_as<ResolvedOf<P>>;
      { workspace_bytes(problem, device, tokens) } -> std::same_as<std::int64_t>;
      { resolved.workspace_bytes(tokens) } -> std::same_as<std::int64_t>;
      { launch(site, resolved, args) } -> std::same_as<Status>;
    };

}  // namespace octile
