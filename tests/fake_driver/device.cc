// Initialisation, error names, devices and contexts.
#include <dlfcn.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/fake_driver/state.h"

namespace {

// Values are from data sheets; clocks are those that the real cards report.
constexpr std::array kModels{
    fake::DeviceModel{"h200", "NVIDIA H200", 9, 0, 132, 232448, 62914560, 1980000, 3201000, 6144},
    fake::DeviceModel{"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 232448, 52428800, 1980000,
                      2619000, 5120},
    fake::DeviceModel{"h20", "NVIDIA H20", 9, 0, 78, 232448, 62914560, 1980000, 2619000, 6144},
    fake::DeviceModel{"h100-part", "NVIDIA H100 80GB HBM3 MIG 4g.40gb", 9, 0, 64, 232448, 26214400,
                      1980000, 2619000, 2560},
    fake::DeviceModel{"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 166912, 41943040, 1410000,
                      1593000, 5120},
    fake::DeviceModel{"l40s", "NVIDIA L40S", 8, 9, 142, 101376, 100663296, 2520000, 9001000, 384},
    fake::DeviceModel{"rtx5090", "NVIDIA GeForce RTX 5090", 12, 0, 170, 101376, 100663296, 2407000,
                      14001000, 512},
    fake::DeviceModel{"b200", "NVIDIA B200", 10, 0, 148, 232448, 132120576, 1965000, 3996000, 8192},
};

std::vector<const fake::DeviceModel*> configured_devices() {
  const char* value = std::getenv("FAKE_CUDA_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  std::istringstream names(value != nullptr ? value : "h200,h200");
  std::vector<const fake::DeviceModel*> devices;
  for (std::string name; std::getline(names, name, ',');)
    for (const fake::DeviceModel& model : kModels)
      if (name == model.key) devices.push_back(&model);
  return devices;
}

// Returns the number of a variable, 0 if it is not set.
int number_of(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return value != nullptr ? std::atoi(value) : 0;
}

// Opens the library that FAKE_CUDA_EXECUTOR names, if this is octile-prover or the program that
// FAKE_CUDA_EXECUTOR_ALSO_IN names. The library may call fake_cuda_fail() at once.
void open_executor() {
  const char* path = std::getenv("FAKE_CUDA_EXECUTOR");           // NOLINT(concurrency-mt-unsafe)
  const char* other = std::getenv("FAKE_CUDA_EXECUTOR_ALSO_IN");  // NOLINT(concurrency-mt-unsafe)
  const auto is_this = [](const char* name) {
    return name != nullptr && std::strcmp(program_invocation_short_name, name) == 0;
  };
  if (path == nullptr || (!is_this("octile-prover") && !is_this(other))) return;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* found = library == nullptr ? nullptr : dlsym(library, "fake_cuda_execute");
  if (found == nullptr) std::abort();
  const fake::Locked state;
  state->executor = reinterpret_cast<fake_cuda_executor>(found);
}

struct ErrorText {
  CUresult result;
  const char* name;
  const char* description;
};
#define FAKE_ERROR(result, description) {result, #result, description}
constexpr ErrorText kErrors[] = {
    FAKE_ERROR(CUDA_SUCCESS, "no error"),
    FAKE_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    FAKE_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    FAKE_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    FAKE_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    FAKE_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    FAKE_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    FAKE_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    FAKE_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for the device"),
    FAKE_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    FAKE_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    FAKE_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    FAKE_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    FAKE_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    FAKE_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "cluster misconfiguration"),
    FAKE_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    FAKE_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
               "operation not permitted when stream is capturing"),
    FAKE_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
               "operation failed due to a previous error during capture"),
    FAKE_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    FAKE_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
               "attempt to terminate a thread-local capture sequence from another thread"),
    FAKE_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
               "dependency created on uncaptured work in another stream"),
    FAKE_ERROR(CUDA_ERROR_CAPTURED_EVENT,
               "operation not permitted on an event last recorded in a capturing stream"),
    FAKE_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    FAKE_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    FAKE_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

int attribute_value(const fake::DeviceModel& model, CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return model.sm_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return model.sm_minor;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return model.sm_count;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return model.max_smem_per_block_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      return 49152;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return 65536;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      return model.l2_bytes;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      return model.clock_khz;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      return model.memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      return model.bus_bits;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
      return number_of("FAKE_CUDA_COMPUTE_MODE");
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
      return number_of("FAKE_CUDA_MPS");
    default:
      return 0;
  }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  fake::Locked state;
  if (const CUresult injected = fake::enter_call(*state, "cuInit"); injected != CUDA_SUCCESS)
    return injected;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (state->initialised) return CUDA_SUCCESS;
  state->devices = configured_devices();
  if (state->devices.empty()) return CUDA_ERROR_NO_DEVICE;
  for (std::size_t i = 0; i < state->devices.size(); ++i) {
    state->contexts.push_back({.device = static_cast<int>(i), .retained = 0});
    state->default_streams.push_back(
        {.context = &state->contexts.back(), .blocking = true, .capture = nullptr});
  }
  state->initialised = true;
  state.unlock();
  open_executor();
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  fake::Locked state;
  if (const CUresult injected = fake::enter_call(*state, "cuDriverGetVersion");
      injected != CUDA_SUCCESS)
    return injected;
  const char* value = std::getenv("FAKE_CUDA_VERSION");  // NOLINT(concurrency-mt-unsafe)
  *version = value != nullptr ? std::atoi(value) : CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  for (const ErrorText& known : kErrors)
    if (known.result == error) return *name = known.name, CUDA_SUCCESS;
  *name = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** description) {
  for (const ErrorText& known : kErrors)
    if (known.result == error) return *description = known.description, CUDA_SUCCESS;
  *description = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_ENTER(cuDeviceGet);
  if (!fake::is_device(*state, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_ENTER(cuDeviceGetCount);
  *count = static_cast<int>(state->devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_ENTER(cuDeviceGetName);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (name == nullptr || length < 1) return CUDA_ERROR_INVALID_VALUE;
  const std::string text = state->devices[static_cast<std::size_t>(device)]->name;
  const std::size_t copied = text.copy(name, static_cast<std::size_t>(length) - 1);
  name[copied] = '\0';
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  FAKE_ENTER(cuDeviceGetUuid_v2);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *uuid = {};
  uuid->bytes[15] = static_cast<char>(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  FAKE_ENTER(cuDeviceGetAttribute);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_value(*state->devices[static_cast<std::size_t>(device)], attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  FAKE_ENTER(cuDeviceTotalMem_v2);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = state->memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_ENTER(cuDevicePrimaryCtxRetain);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  const char* kills = std::getenv("FAKE_CUDA_KILLS_USERS_OF");  // NOLINT(concurrency-mt-unsafe)
  if (kills != nullptr && std::to_string(device) == kills) (void)std::raise(SIGKILL);
  *context = &state->contexts[static_cast<std::size_t>(device)];
  ++(*context)->retained;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_ENTER(cuDevicePrimaryCtxRelease_v2);
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  CUctx_st& context = state->contexts[static_cast<std::size_t>(device)];
  if (context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --context.retained;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  FAKE_ENTER(cuCtxGetCurrent);
  *context = fake::current_context(*state);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_ENTER(cuCtxSetCurrent);
  if (context != nullptr && !fake::is_context(*state, context)) return CUDA_ERROR_INVALID_CONTEXT;
  auto& stack = fake::context_stack(*state);
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_ENTER(cuCtxPushCurrent_v2);
  if (!fake::is_context(*state, context)) return CUDA_ERROR_INVALID_CONTEXT;
  fake::context_stack(*state).push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  FAKE_ENTER_WITH_CONTEXT(cuCtxPopCurrent_v2);
  auto& stack = fake::context_stack(*state);
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_ENTER_WITH_CONTEXT(cuCtxGetDevice);
  *device = fake::current_context(*state)->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  FAKE_ENTER_WITH_CONTEXT(cuCtxSynchronize);
  return fake::check_unsafe_call(*state);
}

}  // extern "C"
