#include "runtime/families/quantize/arguments.h"

namespace octile {

octile_quantize_args QuantizeArguments::call() const {
  octile_quantize_args args =
      *this;  // NOLINT(cppcoreguidelines-slicing): features follow by pointer
  args.groups = feature_pointer(groups);
  args.delayed = feature_pointer(delayed);
  args.fused = feature_pointer(fused);
  args.source_scales = feature_pointer(source_scales);
  args.monitor = feature_pointer(monitor);
  args.change = feature_pointer(change);
  args.gather = feature_pointer(gather);
  return args;
}

}  // namespace octile
