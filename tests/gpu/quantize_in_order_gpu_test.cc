// The quantisers of Ada on another GPU: the text that is emitted for an L40S, compiled for the GPU
// at hand and launched in order, bit for bit against the host reference. It proves all of that text
// but an Ada's own instructions.
#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu/quantize_gpu.h"
#include "tests/gpu/session.h"

namespace octile {
namespace {

class QuantizeInOrderGpu : public QuantizeGpuFixture {
 protected:
  // Returns an L40S with the architecture and the number of SMs of the GPU at hand.
  DeviceSpec ada() {
    DeviceSpec device = *find_device("l40s");
    device.sm_major = gpu().device().sm_major;
    device.sm_minor = gpu().device().sm_minor;
    device.sm_count = gpu().device().sm_count;
    return device;
  }
  // Compares the default kernels of few and of many rows.
  void compare_defaults(const DeviceSpec& device, QuantizeProblem problem, const Placement& at) {
    problem.cols = at.cols;
    const QuantizeConfig few = default_config(problem, at.rows, device);
    const QuantizeConfig many = default_config(problem, kDynamic, device);
    compare_as(device, few, problem, at, {Fill::kNormal, Fill::kMixed, Fill::kInfinities});
    if (!(many == few) && !HasFatalFailure()) {
      compare_as(device, many, problem, at, {Fill::kMixed});
    }
  }
};

TEST_F(QuantizeInOrderGpu, AdasTextEqualsTheReference) {
  const DeviceSpec device = ada();
  ASSERT_FALSE(device.has_pdl || device.has_clusters || device.has_u16x2);
  for (const Placement& at : {Placement{1, 136}, Placement{65, 96}, Placement{303, 300},
                              Placement{993, 512}, Placement{130, 300, 1, 0, 1, 0, 0}}) {
    for_each_covering_cell(
        at.cols, [&](const QuantizeProblem& problem) { compare_defaults(device, problem, at); });
  }
}

TEST_F(QuantizeInOrderGpu, AdasRowMessagesAndRoundedValuesEqualTheReference) {
  const DeviceSpec device = ada();
  for (const Placement& at : {Placement{16, 7168}, Placement{130, 300}}) {
    std::vector<QuantizeProblem> cells = tests::row_message_cells(at.cols);
    for (const QuantizeProblem& p : tests::via_cells(at.cols)) {
      if (!p.skip_unchanged) cells.push_back(p);
    }
    tests::count_cases(cells.size(), 0);
    for_each_of(cells,
                [&](const QuantizeProblem& problem) { compare_defaults(device, problem, at); });
  }
}

// A part of the source comes from a table, whose place is found without min.u16x2.
TEST_F(QuantizeInOrderGpu, AdasTableEqualsTheReference) {
  const DeviceSpec device = ada();
  QuantizeProblem problem;
  problem.cols = 7168;
  problem.source = "gelu_tanh";
  const QuantizeConfig config = default_config(problem, 65536, device);
  ASSERT_TRUE(config.looks_up);
  compare_as(device, config, problem, {256, 7168}, {Fill::kNormal, Fill::kMixed});
}

}  // namespace
}  // namespace octile
