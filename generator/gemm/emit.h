// Emission of the GEMM family: which template a problem takes and which constants it gets.
#pragma once

#include "generator/core/emitter.h"
#include "generator/core/prologue.h"

namespace octile {

Result<EmittedKernel> emit_gemm(const GemmProblem&, const GemmConfig&, const DeviceSpec&,
                                TemplateSet);
// The constants alone, for `octile emit --explain`.
Prologue gemm_prologue(const GemmProblem&, const GemmConfig&);

}  // namespace octile
