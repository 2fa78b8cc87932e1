// The GEMM kernels that the emulation runs. To add kernels, add a line to gemm_variants.cc.
#pragma once

#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile::emulation {

struct GemmVariant {
  GemmProblem problem;  // its n and k only serve to admit the configuration
  GemmConfig config;
};

std::vector<GemmVariant> gemm_variants();

}  // namespace octile::emulation
