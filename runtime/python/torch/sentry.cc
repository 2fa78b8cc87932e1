#include "sentry.h"

#include <stdexcept>
#include <string>

namespace octile::binding {

std::uint32_t* sentry_of(const std::optional<Tensor>& words, Product product, const Place& place) {
  if (!words) return nullptr;
  if (!(place_of(*words) == place)) {
    throw std::invalid_argument("octile: sentry is on another device");
  }
  std::int32_t type = 0;
  aoti_torch_get_dtype(words->get(), &type);
  if (type != aoti_torch_dtype_int32() || words->numel() != 3 || !words->is_contiguous()) {
    throw std::invalid_argument("octile: sentry has " + std::to_string(words->numel()) +
                                " elements; allowed is contiguous int32 [3]");
  }
  return static_cast<std::uint32_t*>(words->data_ptr()) + static_cast<int>(product);
}

}  // namespace octile::binding
