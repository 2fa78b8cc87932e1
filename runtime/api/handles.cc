// Which handles this process may use.

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "runtime/api/boundary.h"

namespace octile::api {

Error made_before_fork(const char* name) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{} was made before fork(), by another process; allowed: a handle that this "
                      "process made",
                      name)};
}

namespace {

// The process that made each handle. Never destroyed: handles may be destroyed while the process
// exits.
std::map<const void*, std::uint32_t>& live_handles() {
  static auto& handles = *new std::map<const void*, std::uint32_t>;
  return handles;
}

Status check_live(const char* name, const void* handle) {
  const auto found = live_handles().find(handle);
  if (found == live_handles().end())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}, which is not a handle, or one that was destroyed before; "
                            "allowed: a handle, once",
                            name, handle));
  if (found->second != fork_generation()) return tl::unexpected<Error>(made_before_fork(name));
  return {};
}

}  // namespace

void note_handle(const void* handle) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kHandles));
  live_handles()[handle] = fork_generation();
}

Status require_live(const char* name, const void* handle) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kHandles));
  return check_live(name, handle);
}

Status forget_handle(const char* name, const void* handle) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kHandles));
  if (Status live = check_live(name, handle); !live) return live;
  live_handles().erase(handle);
  return {};
}

}  // namespace octile::api
