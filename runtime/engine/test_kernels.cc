#include "runtime/engine/test_kernels.h"

#include "runtime/engine/known_answers.h"
#include "runtime/engine/unit_forms.h"

namespace octile {

std::vector<TestKernel> test_kernels(const DeviceSpec& device) {
  if (device.is_proven) return {};
  std::vector<TestKernel> kernels = kernels_of_known_answers(device);
  for (const UnitTests& tests : unit_tests(device)) {
    for (const UnitForm& form : tests.forms) {
      kernels.push_back({problem_of(form), config_of(form, tests.device),
                         static_cast<std::int64_t>(form.sums_tokens ? form.k : form.m)});
    }
  }
  return kernels;
}

}  // namespace octile
