#include "tests/emulation/gemm_variants.h"

#include <cstdio>
#include <cstdlib>

namespace octile::emulation {
namespace {

GemmProblem problem(int promote = 128, DType a = DType::kE4M3, DType b = DType::kE4M3) {
  GemmProblem p;
  p.n = 7168;
  p.k = 7168;
  p.a.dtype = a;
  p.b.dtype = b;
  p.promote = promote;
  return p;
}

GemmConfig config(const char* text, int promote = 128) {
  auto parsed = parse_gemm_config(text);
  if (!parsed) {
    std::fprintf(stderr, "%s\n", parsed.error().message.c_str());
    std::abort();
  }
  parsed->promote = promote;
  return *parsed;
}

}  // namespace

std::vector<GemmVariant> gemm_variants() {
  return {
      {problem(), config("tile=128x128x128 stages=5 wg=2")},
  };
}

}  // namespace octile::emulation
