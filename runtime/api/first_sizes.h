// Bytes of the public structs in their first release.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "octile/layers.h"
#include "octile/octile.h"
#include "octile/pieces.h"
#include "octile/tuning.h"

namespace octile::api {

// The least struct_size that a call accepts. There is no general definition, so that a struct
// without its row below does not compile.
template <typename Struct>
struct FirstSize;

// tests/abi builds a library whose structs have all grown by a field.
#ifdef OCTILE_TEST_GROWN
inline constexpr std::size_t kGrownBytes = sizeof(std::int64_t);
#else
inline constexpr std::size_t kGrownBytes = 0;
#endif

// A row states the bytes, which never change once they are released, and the last field, which is
// the one that was added last. The struct must end with that field: in padding behind it a new
// field would not change sizeof, and struct_size could not tell if the caller knows the field.
#define OCTILE_FIRST_SIZE(Struct, bytes, last)                                                 \
  template <>                                                                                  \
  struct FirstSize<Struct> : std::integral_constant<std::size_t, bytes> {};                    \
  static_assert(sizeof(Struct) >= (bytes), #Struct " is shorter than its first release");      \
  static_assert(offsetof(Struct, last) + sizeof(Struct::last) + kGrownBytes == sizeof(Struct), \
                #Struct " ends in padding, or not with " #last)

// NOLINTBEGIN(bugprone-sizeof-expression): the size of a last field that is a pointer is meant.
OCTILE_FIRST_SIZE(octile_library_options, 56, compile_threads);
OCTILE_FIRST_SIZE(octile_quantized_layout, 56, scale_bytes);
OCTILE_FIRST_SIZE(octile_recipe, 64, delayed);
OCTILE_FIRST_SIZE(octile_loss, 400, worst);
OCTILE_FIRST_SIZE(octile_gemm_desc, 120, reserved);
OCTILE_FIRST_SIZE(octile_quantize_fused_desc, 32, weighted);
OCTILE_FIRST_SIZE(octile_quantize_desc, 88, reserved);
OCTILE_FIRST_SIZE(octile_prepare_options, 32, reserved);
OCTILE_FIRST_SIZE(octile_gemm_groups, 32, expected_tokens);
OCTILE_FIRST_SIZE(octile_gemm_batch, 48, d_stride);
OCTILE_FIRST_SIZE(octile_gemm_d_scales, 24, scale_ld);
OCTILE_FIRST_SIZE(octile_gemm_monitor, 16, sentry);
OCTILE_FIRST_SIZE(octile_gemm_args, 160, monitor);
OCTILE_FIRST_SIZE(octile_quantize_groups, 32, counts);
OCTILE_FIRST_SIZE(octile_quantize_delayed, 16, encode_scale);
OCTILE_FIRST_SIZE(octile_quantize_fused, 88, row_factor);
OCTILE_FIRST_SIZE(octile_quantize_change, 16, state);
OCTILE_FIRST_SIZE(octile_quantize_gather, 24, x_rows);
OCTILE_FIRST_SIZE(octile_quantize_source_scales, 24, x_scale_ld);
OCTILE_FIRST_SIZE(octile_quantize_monitor, 32, encode_scale);
OCTILE_FIRST_SIZE(octile_quantize_args, 160, gather);
OCTILE_FIRST_SIZE(octile_scale_update_args, 80, scale_stride);
OCTILE_FIRST_SIZE(octile_layer_desc, 72, history);
OCTILE_FIRST_SIZE(octile_layer_operand, 96, whole_columns);
OCTILE_FIRST_SIZE(octile_layer_forward_args, 112, flags);
OCTILE_FIRST_SIZE(octile_layer_backward_args, 128, reserved);
OCTILE_FIRST_SIZE(octile_layer_quantize_args, 72, reserved);
OCTILE_FIRST_SIZE(octile_layer_update_args, 48, stride);
OCTILE_FIRST_SIZE(octile_weight_call, 56, reserved);
OCTILE_FIRST_SIZE(octile_pieces_desc, 40, reserved);
OCTILE_FIRST_SIZE(octile_piece, 96, q_transposed);
OCTILE_FIRST_SIZE(octile_tune_progress, 72, default_us);
OCTILE_FIRST_SIZE(octile_tune_options, 88, reserved);
OCTILE_FIRST_SIZE(octile_tune_result, 48, reserved);
OCTILE_FIRST_SIZE(octile_records_merged, 40, bad_lines);
// NOLINTEND(bugprone-sizeof-expression)

#undef OCTILE_FIRST_SIZE

}  // namespace octile::api
