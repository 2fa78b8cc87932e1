#include "runtime/launch/argument_checks.h"

#include <fmt/format.h>

#include <utility>

#include "generator/core/layout.h"

namespace octile {
namespace {

constexpr std::int64_t kWorkspaceAlign = 16;  // octile.h

}  // namespace

Status refuse(std::string sentence) {
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

Status refuse_pointer(std::string_view name, const void* pointer, std::int64_t alignment) {
  if (pointer == nullptr) return refuse(fmt::format("{} is null; allowed: a pointer", name));
  return refuse(fmt::format("{} is {:#x}; allowed: a multiple of {} bytes", name,
                            reinterpret_cast<std::uintptr_t>(pointer), alignment));
}

Status refuse_given(std::string_view name, std::string_view why) {
  return refuse(fmt::format("{} is given; allowed: null, because the plan {}", name, why));
}

Status refuse_missing(std::string_view name, std::string_view why) {
  return refuse(fmt::format("{} is null; allowed: a pointer, because the plan {}", name, why));
}

Status refuse_extent(std::string_view name, std::int64_t extent) {
  return refuse(fmt::format("{} is {}; allowed: 0 to {}", name, extent, kMaxExtent));
}

Status refuse_tokens(const TokenAxis& axis, std::string_view name, std::int64_t tokens) {
  return refuse(fmt::format("{0} is {1}; allowed: {2}, because the plan's problem states {3}={2}",
                            name, tokens, axis.tokens, axis.dimension));
}

Status refuse_ld(std::string_view name, std::int64_t ld, const LdRule& rule) {
  return refuse(fmt::format("{} is {}; allowed: 0 (meaning {}) or a multiple of {} from {} on",
                            name, ld, rule.packed, rule.multiple, rule.least));
}

Status refuse_size(const Rows& rows, std::string_view ld_name, std::int64_t ld, int element_bytes) {
  return refuse(
      fmt::format("{} is {} and {} is {}: {} bytes an element make more than 2^63 - 1 bytes, which "
                  "is the limit",
                  rows.name, rows.count, ld_name, ld, element_bytes));
}

Status check_scale_ld(std::string_view name, std::int64_t& ld, const TensorType& type,
                      std::int64_t rows, std::int64_t cols) {
  const std::int64_t packed = packed_scale_ld(type, rows, cols);
  if (type.granularity == Granularity::k128x128)
    return check_ld(name, ld, {packed, ceil_div(cols, 128), 1});
  return check_ld(name, ld, {packed, packed, packed % 4 == 0 ? 4 : 1});
}

std::int64_t scale_alignment(const TensorType& type) {
  return type.scale == ScaleFormat::kE8M0 ? 1 : type.scale == ScaleFormat::kBF16 ? 2 : 4;
}

Status check_workspace(const void* workspace, std::size_t workspace_bytes,
                       std::int64_t needed_bytes) {
  if (needed_bytes == 0) return {};
  if (Status ok = check_pointer("workspace", workspace, kWorkspaceAlign); !ok) return ok;
  if (workspace_bytes >= static_cast<std::size_t>(needed_bytes)) [[likely]]
    return {};
  return refuse(
      fmt::format("workspace_bytes is {}; allowed: {} or more, as "
                  "octile_plan_workspace_size says",
                  workspace_bytes, needed_bytes));
}

}  // namespace octile
