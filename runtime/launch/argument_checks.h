// Checks of single arguments, which every family's arguments.cc combines. A refusal names the
// argument, its value and what is allowed. A check that passes formats and allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "generator/core/token_axis.h"
#include "generator/core/types.h"

namespace octile {

// The largest extent a kernel takes: extents are int32, addresses 64-bit.
inline constexpr std::int64_t kMaxExtent = 0x7fffffff;

// Returns the sentence as a kInvalidArgument error.
Status refuse(std::string sentence);

Status refuse_pointer(std::string_view name, const void* pointer, std::int64_t alignment);
inline Status check_pointer(std::string_view name, const void* pointer, std::int64_t alignment) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (pointer != nullptr && address % static_cast<std::uintptr_t>(alignment) == 0) [[likely]]
    return {};
  return refuse_pointer(name, pointer, alignment);
}

// Refuses a pointer that the plan has no use for. `why` follows "because the plan".
Status refuse_given(std::string_view name, std::string_view why);
inline Status check_absent(std::string_view name, const void* pointer, std::string_view why) {
  if (pointer == nullptr) [[likely]]
    return {};
  return refuse_given(name, why);
}

// Returns the struct of a feature as a caller gives it that uses nothing of it.
template <typename Feature>
constexpr Feature unused_feature() {
  Feature feature{};
  feature.struct_size = sizeof(Feature);
  return feature;
}
// Returns the pointer by which the C API takes the feature.
template <typename Feature>
constexpr const Feature* feature_pointer(const Feature& feature) {
  return feature.struct_size == 0 ? nullptr : &feature;
}
// Refuses a feature that the plan has and that the caller passed as null. `why` follows "because
// the plan".
Status refuse_missing(std::string_view name, std::string_view why);
inline Status check_feature(std::string_view name, std::size_t struct_size, std::string_view why) {
  if (struct_size != 0) [[likely]]
    return {};
  return refuse_missing(name, why);
}

Status refuse_extent(std::string_view name, std::int64_t extent);
inline Status check_extent(std::string_view name, std::int64_t extent) {
  if (extent >= 0 && extent <= kMaxExtent) [[likely]]
    return {};
  return refuse_extent(name, extent);
}

// Checks a token count against the count that the problem states, if it states one. `name`: the
// argument's ("lo", "tokens").
Status refuse_tokens(const TokenAxis& axis, std::string_view name, std::int64_t tokens);
inline Status check_tokens(const TokenAxis& axis, std::string_view name, std::int64_t tokens) {
  if (!axis.is_dynamic() && tokens != axis.tokens) [[unlikely]]
    return refuse_tokens(axis, name, tokens);
  return check_extent(name, tokens);
}

// The rules of a leading dimension.
struct LdRule {
  std::int64_t packed = 0;  // what 0 stands for
  std::int64_t least = 0;
  std::int64_t multiple = 1;
};
Status refuse_ld(std::string_view name, std::int64_t ld, const LdRule& rule);
// Replaces 0 by the packed value and checks the leading dimension.
inline Status check_ld(std::string_view name, std::int64_t& ld, const LdRule& rule) {
  if (ld == 0) ld = rule.packed;
  if (ld >= rule.least && ld % rule.multiple == 0) [[likely]]
    return {};
  return refuse_ld(name, ld, rule);
}

// The rows of a matrix, by the name that a caller knows.
struct Rows {
  std::string_view name;
  std::int64_t count;
};

Status refuse_size(const Rows& rows, std::string_view ld_name, std::int64_t ld, int element_bytes);
// Refuses rows * ld elements that take more than 2^63 - 1 bytes.
inline Status check_size(const Rows& rows, std::string_view ld_name, std::int64_t ld,
                         int element_bytes) {
  std::int64_t elements = 0;
  std::int64_t bytes = 0;
  if (!__builtin_mul_overflow(rows.count, ld, &elements) &&
      !__builtin_mul_overflow(elements, element_bytes, &bytes)) [[likely]]
    return {};
  return refuse_size(rows, ld_name, ld, element_bytes);
}

// Checks the row stride of a scale array, replacing 0 by the layout's own. 128x128 scales may have
// any stride that holds a row. Another stride is a multiple of 4 if the layout's own is.
Status check_scale_ld(std::string_view name, std::int64_t& ld, const TensorType& type,
                      std::int64_t rows, std::int64_t cols);

// Returns the alignment of a scale: the bytes of one access to it.
std::int64_t scale_alignment(const TensorType& type);

// Checks the workspace of a call that needs this number of bytes. A call that needs 0 may pass
// null.
Status check_workspace(const void* workspace, std::size_t workspace_bytes,
                       std::int64_t needed_bytes);

}  // namespace octile
