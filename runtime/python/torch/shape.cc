#include "shape.h"

#include <string>

namespace octile::binding {
namespace {

const char* name_of(Given given) { return given == Given::kX ? "x" : "dy"; }

bool are_multiples(const Shape& shape) {
  return shape.n > 0 && shape.k > 0 && shape.n % kMultiple == 0 && shape.k % kMultiple == 0;
}

}  // namespace

Shape linear_shape(const Tensor& tokens, const Tensor& weight, Given given) {
  const std::string name = name_of(given);
  Shape shape{.place = place_of(tokens)};
  check_same_place(weight, shape.place, "weight");
  if (tokens.dim() < 1) refuse(name + " has no dimension; allowed are 1 and more");
  const std::int64_t last = tokens.size(tokens.dim() - 1);
  if (weight.dim() != 2) {
    refuse("weight is " + shape_text(weight) + "; allowed is " +
           (given == Given::kX ? "[n, " + std::to_string(last) + "]"
                               : "[" + std::to_string(last) + ", k]"));
  }
  shape.n = weight.size(0);
  shape.k = weight.size(1);
  const std::int64_t shared = given == Given::kX ? shape.k : shape.n;
  if (last != shared) {
    refuse("the last dimension of " + name + " is " + std::to_string(last) + "; with this weight " +
           std::to_string(shared) + " is allowed");
  }
  if (!are_multiples(shape)) {
    refuse("weight is " + shape_text(weight) + "; allowed are multiples of 16 above 0");
  }
  shape.tokens = tokens.numel() / last;
  return shape;
}

Shape expert_shape(const Tensor& tokens, const Tensor& weight, const Tensor& offsets, Given given) {
  const std::string name = name_of(given);
  if (weight.dim() != 3) refuse("weight is " + shape_text(weight) + "; allowed is [experts, n, k]");
  Shape shape{.place = place_of(tokens),
              .n = weight.size(1),
              .k = weight.size(2),
              .experts = weight.size(0),
              .offsets = static_cast<const std::int32_t*>(offsets.data_ptr())};
  const std::int64_t shared = given == Given::kX ? shape.k : shape.n;
  if (tokens.dim() != 2 || tokens.size(1) != shared) {
    refuse(name + " is " + shape_text(tokens) + "; with weights " + shape_text(weight) +
           " [tokens, " + std::to_string(shared) + "] is allowed");
  }
  if (!are_multiples(shape)) {
    refuse("weight is " + shape_text(weight) + "; allowed n and k are multiples of 16 above 0");
  }
  if (shape.experts == 0)
    refuse("weight is " + shape_text(weight) + "; allowed are 1 expert and more");
  if (type_of(offsets) != torch_int32() || offsets.dim() != 1 || !offsets.is_contiguous() ||
      offsets.size(0) != shape.experts + 1) {
    refuse("offsets is " + shape_text(offsets) + "; allowed is int32 [" +
           std::to_string(shape.experts + 1) + "], contiguous");
  }
  if (!is_at(weight, shape.place) || !is_at(offsets, shape.place)) {
    refuse("weight or offsets is on another device than " + name);
  }
  shape.tokens = tokens.size(0);
  return shape;
}

}  // namespace octile::binding
