// One call of a layer: the checks common to all calls, its parts of the workspace, and the
// quantisers and GEMMs that it runs.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "generator/core/error.h"
#include "octile/layers.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/layers/operand.h"
#include "runtime/layers/plans.h"
#include "runtime/layers/scaling.h"

namespace octile::layers {

// Common parts of calls of several kinds.
struct CommonArguments {
  std::int64_t tokens = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  const std::int32_t* group_offsets = nullptr;
  float* scaling = nullptr;
  std::uint32_t* sentry = nullptr;
  std::int32_t sm_limit = 0;
  std::uint32_t flags = 0;
};

CommonArguments common_of(const octile_layer_forward_args& args);
CommonArguments common_of(const octile_layer_backward_args& args);
CommonArguments common_of(const octile_layer_quantize_args& args);

// A matrix that a GEMM writes.
struct Result2d {
  std::string_view name, ld_name;
  void* pointer = nullptr;
  std::int64_t ld = 0;
};

class Run {
 public:
  Run(const Plans& plans, const Description& description, const CommonArguments& args,
      CUstream stream)
      : plans_(plans),
        d_(description),
        args_(args),
        scaling_(description, args.scaling),
        stream_(stream) {}

  // Checks of arguments, before anything else.
  Status check_tokens() const;
  Status check_groups(bool used) const;
  Status check_scaling() const;
  Status check_sentry() const;
  // reads_w: nothing is written that the GEMM reads as B.
  Status check_gemm_options(bool reads_w) const;
  // Completes the leading dimension and checks the matrix.
  Status check_result(Result2d& result, const Rows& rows, std::int64_t columns, DType type) const;

  Status check_bias(const void* bias, bool used) const;
  Status check_bias_gradient(const float* sums, bool dy_is_current) const;

  // Notes that the call runs a plan, and checks that it has one and that its kernel is ready. uses:
  // with which the plan is prepared. tensors: stacked ones.
  Status use(const Slot& slot, std::int64_t tokens, std::uint32_t uses, std::int64_t tensors = 1);
  Status use_quantizer(const Operand& operand, std::uint32_t uses, bool sums = false);
  // Gives the parts of the call their places in the workspace, and checks that it has room.
  Status place(std::initializer_list<Operand*> operands);

  Status use_transposer(const Operand& w);
  // Enqueue work. records: the maximum of the tensor is raised. sums: of the columns; null: none.
  Status quantize(const Operand& operand, bool records, float* sums = nullptr) const;
  // Makes W^T of the codes of W, if the call reads it.
  Status transpose(const Operand& w) const;
  // a_columns: those of the whole that A is a part of; 0: A is a matrix of its own.
  Status multiply(Pass pass, const octile_layer_copy& a, const octile_layer_copy& b,
                  const Result2d& d, const void* bias = nullptr, std::int64_t b_scale_ld = 0,
                  std::int64_t a_columns = 0) const;
  Status clear(const Slot& slot, void* memory, std::size_t bytes) const;

 private:
  Error not_ready(Error error, std::int64_t tokens) const;

  const Plans& plans_;
  const Description& d_;
  CommonArguments args_;
  Scaling scaling_;
  CUstream stream_;
  std::uint32_t uses_ = 0;
  std::int64_t scratch_bytes_ = 0;  // of the plan that needs most
  void* scratch_ = nullptr;
};

}  // namespace octile::layers
