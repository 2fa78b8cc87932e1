// Words on the device that say which products of a layer were not finite.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_

#include <cstdint>
#include <optional>

#include "tensors.h"

namespace octile::binding {

enum class Product : std::uint8_t { kOutput, kInputGradient, kWeightGradient };

// The words of a layer are one int32 tensor [3], a word for each product, which Python owns and
// clears. A product sets its word to 1 if an element of the result is NaN or infinite, although the
// schemas of operators do not say so: no graph reads the words, and setting one twice is setting it
// once. Returns the word of `product`, or null without words. Throws std::invalid_argument if
// `words` is no such tensor on `place`.
std::uint32_t* sentry_of(const std::optional<Tensor>& words, Product product, const Place& place);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_SENTRY_H_
