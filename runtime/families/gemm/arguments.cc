#include "runtime/families/gemm/arguments.h"

namespace octile {

octile_gemm_args GemmArguments::call() const {
  octile_gemm_args args = *this;  // NOLINT(cppcoreguidelines-slicing): features follow by pointer
  args.groups = feature_pointer(groups);
  args.batch = feature_pointer(batch);
  args.d_scales = feature_pointer(d_scales);
  args.monitor = feature_pointer(monitor);
  return args;
}

}  // namespace octile
