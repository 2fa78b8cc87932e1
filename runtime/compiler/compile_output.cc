#include "runtime/compiler/compile_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/compiler/compile_log.h"
#include "runtime/compiler/cubin.h"

namespace octile {
namespace {

// Joins the log's figures with those of the cubin. If a kernel is missing from the log (a release
// words it differently), its spills are unknown. Spills live in the stack frame, so they are then
// reported as the frame's size.
Result<std::vector<KernelResources>> join_resources(const CubinInfo& cubin, const CompileLog& log,
                                                    std::vector<std::string>* warnings) {
  std::vector<KernelResources> joined;
  for (const CubinKernel& kernel : cubin.kernels) {
    KernelResources resources{.name = kernel.name,
                              .registers = kernel.registers,
                              .spill_store_bytes = kernel.frame_bytes,
                              .spill_load_bytes = kernel.frame_bytes,
                              .stack_bytes = kernel.frame_bytes,
                              .static_smem_bytes = kernel.static_smem_bytes,
                              .max_threads = kernel.max_threads,
                              .parameter_bytes = {}};
    for (const CubinParameter& p : kernel.parameters)
      resources.parameter_bytes.push_back(p.size_bytes);
    const auto logged = std::ranges::find(log.kernels, kernel.name, &LoggedKernel::name);
    if (logged == log.kernels.end()) {
      warnings->push_back(
          fmt::format("the log has no resource lines of {}; its spills are taken as its stack "
                      "frame of {} bytes",
                      kernel.name, kernel.frame_bytes));
    } else if (logged->registers != kernel.registers) {
      return fail(ErrorCode::kCompileFailed,
                  fmt::format("kernel {}: ptxas reports {} registers, its cubin {}", kernel.name,
                              logged->registers, kernel.registers));
    } else {
      resources.spill_store_bytes = logged->spill_store_bytes;
      resources.spill_load_bytes = logged->spill_load_bytes;
      resources.stack_bytes = std::max(logged->stack_bytes, kernel.frame_bytes);
    }
    joined.push_back(std::move(resources));
  }
  return joined;
}

}  // namespace

const KernelResources* CompileOutput::find(std::string_view kernel) const {
  const auto found = std::ranges::find(kernels, kernel, &KernelResources::name);
  return found == kernels.end() ? nullptr : &*found;
}

Result<CompileOutput> read_output(CubinAndLog compiled) {
  const auto cubin = read_cubin(compiled.cubin);
  if (!cubin)
    return fail(ErrorCode::kCompileFailed,
                fmt::format("the compiler's answer is {}", cubin.error().message));
  CompileLog log = parse_compile_log(compiled.log);
  CompileOutput output{.cubin = std::move(compiled.cubin),
                       .kernels = {},
                       .log = std::move(compiled.log),
                       .warnings = std::move(log.warnings),
                       .lost_schedules = std::move(log.lost_schedules),
                       .compile_ms = compiled.compile_ms};
  auto kernels = join_resources(*cubin, log, &output.warnings);
  if (!kernels) return tl::unexpected(kernels.error());
  output.kernels = std::move(*kernels);
  return output;
}

}  // namespace octile
