// Emission of the GEMM family: which template a problem takes and which constants it gets.
#pragma once

#include <string>

#include "generator/core/device_spec.h"
#include "generator/core/emitter.h"
#include "generator/core/error.h"
#include "generator/core/prologue.h"
#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile {

Result<EmittedKernel> emit(const GemmProblem&, const GemmConfig&, const DeviceSpec&, TemplateSet);
// The constants alone.
Prologue gemm_prologue(const GemmProblem&, const GemmConfig&, const DeviceSpec&);
// The configuration and the constants, for `octile emit --explain`.
std::string explain(const GemmProblem&, const GemmConfig&, const DeviceSpec&);

}  // namespace octile
