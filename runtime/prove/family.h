// The functions of a family of kernels that prove its kernels correct and time them. Its folder has
// one file for each of: operands, verify, bench. runtime/families/family.h has what it gives to
// run.
#pragma once

#include <concepts>
#include <cstdint>

#include "generator/core/error.h"

namespace octile {

// The functions of a family's operands.h that families.h dispatches:
//   check_operands(problem)       refuses a problem that operands cannot be made for
//   bytes_moved(problem, tokens)  the bytes that a call cannot avoid moving
// The check is made in operands.h, where no dispatching function is declared yet, so that a missing
// function cannot be mistaken for one.
template <typename P>
concept FamilyWithOperands = requires(const P& problem, std::int64_t tokens) {
  { check_operands(problem) } -> std::same_as<Status>;
  { bytes_moved(problem, tokens) } -> std::same_as<std::int64_t>;
};

}  // namespace octile
