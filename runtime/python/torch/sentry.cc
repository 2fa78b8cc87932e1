#include "sentry.h"

#include <string>

namespace octile::binding {

std::uint32_t* sentry_of(const std::optional<Tensor>& words, const Place& place) {
  if (!words) return nullptr;
  check_same_place(*words, place, "sentry");
  if (type_of(*words) != torch_int32() || words->numel() != 3 || !words->is_contiguous()) {
    refuse("sentry has " + std::to_string(words->numel()) +
           " elements; allowed is contiguous int32 [3]");
  }
  return static_cast<std::uint32_t*>(words->data_ptr());
}

}  // namespace octile::binding
