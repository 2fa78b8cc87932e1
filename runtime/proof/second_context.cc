#include "runtime/proof/second_context.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "cache/file_ops.h"
#include "runtime/base/environment.h"

namespace octile {
namespace {

// Returns whether the control daemon's pipe is there. It serves every process that starts.
bool has_service_here() {
  const std::string folder =
      environment_path("CUDA_MPS_PIPE_DIRECTORY").value_or("/tmp/nvidia-mps");
  struct stat status = {};
  return cache::FileOps().stat_at(AT_FDCWD, folder + "/control", status) == 0;
}

}  // namespace

std::string why_no_second_context(const Driver& driver, int ordinal) {
  int mode = CU_COMPUTEMODE_DEFAULT;
  driver->cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, ordinal);
  if (mode != CU_COMPUTEMODE_DEFAULT)
    return fmt::format(
        "its compute mode is {}, in which no second process has a context; `nvidia-smi "
        "--compute-mode=DEFAULT` allows one, `octile doctor` then tests the device",
        mode == CU_COMPUTEMODE_PROHIBITED ? "PROHIBITED" : "EXCLUSIVE_PROCESS");
  int service = 0;
  const CUresult asked =
      driver->cuDeviceGetAttribute(&service, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, ordinal);
  // Drivers before CUDA 12.4 do not know the attribute.
  if (asked == CUDA_SUCCESS ? service != 0 : has_service_here())
    return "its contexts are those of a multi-process service (MPS), whose other clients a fault "
           "would reach; `octile doctor` tests the device while the service does not run";
  return {};
}

}  // namespace octile
