#include "tools/doctor/self_test.h"

#include <fmt/format.h>

#include <chrono>

#include "generator/families.h"
#include "runtime/api/boundary.h"
#include "runtime/engine/target.h"
#include "runtime/measure/gpu_session.h"
#include "runtime/reference/synthetic.h"
#include "tools/common/forward.h"

namespace octile::tools {
namespace {

// Several tiles in each dimension, and a host that checks them in a second.
constexpr std::int64_t kTokens = 256, kOutputs = 512, kInputs = 1024;
constexpr float kOutlier = 220.0F;

Result<ForwardReport> run_layer(const LibraryHandle& library, const std::string& device) {
  const auto gpu = GpuSession::open(library.get()->library, device);
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

}  // namespace

// The tests in octile-prover come first: what they find decides which kernels the layer has.
SelfTest test_device(const LibraryHandle& library, const std::string& device) {
  const auto start = std::chrono::steady_clock::now();
  SelfTest test;
  test.device = device;
  const auto target = resolve_target(device);
  if (target) test.card = test_card(library, *target);
  if (const std::string_view why = target ? why_no_gemm(target->spec) : ""; !why.empty()) {
    test.ok = test.card.ok();
    test.verdict = fmt::format("no GEMM is tested: {}", why);
  } else {
    const auto report = run_layer(library, device);
    test.ok = test.card.ok() && report && report->ok();
    test.verdict = report ? verdict_of(*report) : "it could not be run: " + report.error().message;
  }
  test.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return test;
}

std::string what_is_wrong(const SelfTest& test) {
  return test.card.ok() ? test.verdict : test.card.first_wrong;
}

Json to_json(const SelfTest& test) {
  return {{"device", test.device},
          {"ok", test.ok},
          {"verdict", test.verdict},
          {"units", test.card.units},
          {"quantisers", test.card.quantisers},
          {"seconds", test.seconds}};
}

}  // namespace octile::tools
