#include "tools/doctor/self_test.h"

#include <fmt/format.h>

#include <chrono>

#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/known_answers.h"
#include "runtime/engine/target.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/reference/synthetic.h"
#include "tools/demo/forward.h"
#include "tools/doctor/report.h"

namespace octile::tools {
namespace {

// Several tiles in each dimension, and a host that checks them in a second.
constexpr std::int64_t kTokens = 256, kOutputs = 512, kInputs = 1024;
constexpr float kOutlier = 220.0F;

Result<ForwardReport> run_layer(const LibraryHandle& library, const std::string& device) {
  const auto gpu = GpuSession::open(device);
  if (!gpu) return tl::unexpected<Error>(gpu.error());
  reference::ActivationSpec spec;
  spec.rows = kTokens;
  spec.cols = kInputs;
  spec.channel_30 %= kInputs;
  spec.channel_50 %= kInputs;
  spec.outlier_row %= kTokens;
  spec.outlier_col %= kInputs;
  spec.outlier = kOutlier;
  const Layer layer =
      make_layer(*find_recipe("blockwise:f32"), reference::synthetic_activations(spec), kTokens,
                 kOutputs, kInputs);
  return forward_on_gpu(library, **gpu, layer, [](const std::string&) {});
}

std::string verdict_of(const ForwardReport& report) {
  if (report.compared_codes && !report.codes_equal)
    return "wrong: the codes that the device writes differ from the host's";
  if (!report.check.ok)
    return fmt::format("wrong: the GEMM is not within its tolerance: {}",
                       report.check.worst.to_text());
  return "right: codes equal the host's bit for bit, and the GEMM is within its tolerance of FP64";
}

// Returns the support matrix's reason if the device has no GEMM.
std::string_view why_no_gemm(const DeviceSpec& device) {
  for (const RefusedOperation& refused : refused_operations(device)) {
    if (refused.operation == "gemm") return refused.reason;
  }
  return {};
}

void test_quantisers(const LibraryHandle& library, const Target& target, std::string_view why,
                     SelfTest& test) {
  const Status known = test_known_answers(library.get()->library, target);
  test.ok = known.has_value();
  test.verdict = known ? "right: the quantisers' codes equal the host's bit for bit; no GEMM is "
                         "tested: " +
                             std::string(why)
                       : "wrong: " + known.error().message;
}

}  // namespace

SelfTest test_device(const LibraryHandle& library, const std::string& device) {
  const auto start = std::chrono::steady_clock::now();
  SelfTest test;
  test.device = device;
  const auto target = resolve_target(device);
  if (const std::string_view why = target ? why_no_gemm(target->spec) : ""; !why.empty()) {
    test_quantisers(library, *target, why, test);
  } else {
    const auto report = run_layer(library, device);
    test.ok = report && report->ok();
    test.verdict = report ? verdict_of(*report) : "it could not be run: " + report.error().message;
    if (target) test.units = units_json(library, *target);
  }
  test.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return test;
}

Json to_json(const SelfTest& test) {
  return {{"device", test.device},
          {"ok", test.ok},
          {"verdict", test.verdict},
          {"units", test.units},
          {"seconds", test.seconds}};
}

}  // namespace octile::tools
