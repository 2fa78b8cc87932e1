// Words on the device that say which products of a layer were not finite.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_

#include <cstdint>
#include <optional>

#include "tensors.h"

namespace octile::binding {

// The words of a layer are one int32 tensor [3], for the output, the input gradient and the weight
// gradient, which Python owns and clears. Calls set the word of a product to 1 if an element of it
// is NaN or infinite, although the schemas of operators do not say so: no graph reads the words,
// and setting one twice is setting it once. Returns the words, or null without a tensor. Throws
// std::invalid_argument if `words` is not such a tensor on `place`.
std::uint32_t* sentry_of(const std::optional<Tensor>& words, const Place& place);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_
