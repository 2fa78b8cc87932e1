// Libraries, kernels, launches and tensor maps.
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "tests/fake_driver/state.h"

namespace {

constexpr int kDefaultDynamicSmem = 49152;  // a kernel that needs more must ask by attribute
constexpr unsigned kMaxThreadsPerBlock = 1024;
constexpr unsigned kMaxGridYz = 65535;
constexpr unsigned kPortableClusterSize = 8;
constexpr unsigned kMaxClusterSize = 16;

const fake::DeviceModel& model(const fake::State& state, int device) {
  return *state.devices[static_cast<std::size_t>(device)];
}

bool runs_on(const fake::State& state, const CUkern_st& kernel, int device) {
  const fake::DeviceModel& m = model(state, device);
  return kernel.sm == m.sm_major * 10 + m.sm_minor;
}

int dynamic_smem_limit(const CUkern_st& kernel, int device) {
  const auto set = kernel.dynamic_smem_limit.find(device);
  if (set != kernel.dynamic_smem_limit.end()) return set->second;
  return std::max(0, kDefaultDynamicSmem - kernel.info.static_smem_bytes);
}

// Returns the bytes of a cubin, which does not state its length. Its end comes from its section
// headers, which NVRTC writes last, or from the program headers behind them.
std::span<const std::uint8_t> image_bytes(const void* code) {
  Elf64_Ehdr file;
  std::memcpy(&file, code, sizeof(file));
  const std::uint64_t sections = file.e_shoff + std::uint64_t{file.e_shnum} * file.e_shentsize;
  const std::uint64_t segments = file.e_phoff + std::uint64_t{file.e_phnum} * file.e_phentsize;
  return {static_cast<const std::uint8_t*>(code), std::max(sections, segments)};
}

void read_attributes(const CUlaunchConfig& config, fake_cuda_launch* launch) {
  std::fill_n(launch->cluster, 3, 1U);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      launch->cluster[0] = attribute.value.clusterDim.x;
      launch->cluster[1] = attribute.value.clusterDim.y;
      launch->cluster[2] = attribute.value.clusterDim.z;
    }
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      launch->programmatic = attribute.value.programmaticStreamSerializationAllowed;
  }
}

CUresult check_launch(const fake::State& state, const CUkern_st& kernel,
                      const fake_cuda_launch& launch) {
  if (!runs_on(state, kernel, launch.device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (int d = 0; d < 3; ++d)
    if (launch.grid[d] == 0 || launch.block[d] == 0) return CUDA_ERROR_INVALID_VALUE;
  if (launch.grid[0] > 0x7fffffffU || launch.grid[1] > kMaxGridYz || launch.grid[2] > kMaxGridYz)
    return CUDA_ERROR_INVALID_VALUE;
  const std::uint64_t threads = std::uint64_t{launch.block[0]} * launch.block[1] * launch.block[2];
  if (threads > kMaxThreadsPerBlock) return CUDA_ERROR_INVALID_VALUE;
  if (kernel.info.max_threads != 0 && threads > static_cast<std::uint64_t>(kernel.info.max_threads))
    return CUDA_ERROR_INVALID_VALUE;
  if (launch.dynamic_smem_bytes > static_cast<unsigned>(dynamic_smem_limit(kernel, launch.device)))
    return CUDA_ERROR_INVALID_VALUE;
  std::uint64_t cluster = 1;
  for (int d = 0; d < 3; ++d) {
    if (launch.cluster[d] == 0 || launch.grid[d] % launch.cluster[d] != 0)
      return CUDA_ERROR_INVALID_VALUE;
    cluster *= launch.cluster[d];
  }
  const auto allowed = kernel.non_portable_cluster.find(launch.device);
  const bool non_portable = allowed != kernel.non_portable_cluster.end() && allowed->second;
  return cluster > (non_portable ? kMaxClusterSize : kPortableClusterSize)
             ? CUDA_ERROR_INVALID_CLUSTER_SIZE
             : CUDA_SUCCESS;
}

// Logs the launch and runs the executor. The lock is released first, because the executor may call
// the driver.
CUresult execute(const std::shared_ptr<const fake::LaunchRecord>& recorded, CUstream stream,
                 bool replayed) {
  fake::Locked state;
  fake::LaunchRecord& record = state->launches.emplace_back(*recorded);
  for (std::size_t i = 0; i < record.values.size(); ++i)
    record.pointers[i] = record.values[i].data();
  record.launch.kernel = record.kernel.c_str();
  record.launch.parameters = record.pointers.data();
  record.launch.stream = stream;
  record.launch.replayed = replayed ? 1 : 0;
  const fake_cuda_executor executor = state->executor;
  void* user = state->executor_user;
  const fake_cuda_launch launch = record.launch;  // its pointers are valid until a reset
  state.unlock();
  return executor == nullptr ? CUDA_SUCCESS : executor(&launch, user);
}

}  // namespace

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**,
                           unsigned int, CUlibraryOption*, void**, unsigned int) {
  FAKE_ENTER(cuLibraryLoadData);
  if (const CUresult unsafe = fake::check_unsafe_call(*state); unsafe != CUDA_SUCCESS)
    return unsafe;
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::memcmp(code, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
  const auto info = octile::read_cubin(image_bytes(code));
  if (!info) return CUDA_ERROR_INVALID_IMAGE;
  auto loaded = std::make_unique<CUlib_st>();
  for (const octile::CubinKernel& kernel : info->kernels) {
    CUkern_st& kept = loaded->kernels.emplace_back();
    kept.info = kernel;
    kept.sm = info->sm;
  }
  *library = loaded.get();
  state->libraries.emplace(*library, std::move(loaded));
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  FAKE_ENTER(cuLibraryUnload);
  if (const CUresult unsafe = fake::check_unsafe_call(*state); unsafe != CUDA_SUCCESS)
    return unsafe;
  return state->libraries.erase(library) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  FAKE_ENTER(cuLibraryGetKernel);
  const auto found = state->libraries.find(library);
  if (found == state->libraries.end()) return CUDA_ERROR_INVALID_HANDLE;
  for (CUkern_st& candidate : found->second->kernels)
    if (candidate.info.name == name) return *kernel = &candidate, CUDA_SUCCESS;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  FAKE_ENTER_WITH_CONTEXT(cuKernelGetFunction);
  CUkern_st* found = fake::find_kernel(*state, kernel);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUcontext context = fake::current_context(*state);
  if (!runs_on(*state, *found, context->device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  for (auto& [library, contents] : state->libraries)
    for (const CUkern_st& own : contents->kernels)
      if (&own == found) *function = &(contents->functions[{found, context}] = {found, context});
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  FAKE_ENTER(cuKernelGetAttribute);
  const CUkern_st* found = fake::find_kernel(*state, kernel);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!runs_on(*state, *found, device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return *value = found->info.registers, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return *value = found->info.static_smem_bytes, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return *value = found->info.frame_bytes, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return *value = found->info.max_threads != 0 ? found->info.max_threads : 1024, CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return *value = dynamic_smem_limit(*found, device), CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return *value = found->sm, CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  FAKE_ENTER(cuKernelSetAttribute);
  if (const CUresult unsafe = fake::check_unsafe_call(*state); unsafe != CUDA_SUCCESS)
    return unsafe;
  CUkern_st* found = fake::find_kernel(*state, kernel);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!fake::is_device(*state, device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!runs_on(*state, *found, device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 ||
          value > model(*state, device).max_smem_per_block_optin - found->info.static_smem_bytes)
        return CUDA_ERROR_INVALID_VALUE;
      found->dynamic_smem_limit[device] = value;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      found->non_portable_cluster[device] = value != 0;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  FAKE_ENTER_WITH_CONTEXT(cuLaunchKernelEx);
  const CUkern_st* kernel = fake::find_launchable(*state, function);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUstream_st* stream = fake::find_stream(*state, config->hStream);
  if (kernel == nullptr || stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->context != fake::current_context(*state)) return CUDA_ERROR_INVALID_HANDLE;
  if (extra != nullptr || (parameters == nullptr && !kernel->info.parameters.empty()))
    return CUDA_ERROR_INVALID_VALUE;

  auto record = std::make_shared<fake::LaunchRecord>();
  record->kernel = kernel->info.name;
  record->launch = {.kernel = nullptr,
                    .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                    .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                    .cluster = {},
                    .dynamic_smem_bytes = config->sharedMemBytes,
                    .device = stream->context->device,
                    .programmatic = 0,
                    .replayed = 0,
                    .stream = config->hStream,
                    .parameters = nullptr,
                    .parameter_count = kernel->info.parameters.size()};
  read_attributes(*config, &record->launch);
  if (const CUresult bad = check_launch(*state, *kernel, record->launch); bad != CUDA_SUCCESS)
    return bad;
  for (std::size_t i = 0; i < kernel->info.parameters.size(); ++i) {
    const auto* value = static_cast<const std::uint8_t*>(parameters[i]);
    record->values.emplace_back(value, value + kernel->info.parameters[i].size_bytes);
  }
  record->pointers.resize(record->values.size());
  return fake::enqueue(state, config->hStream,
                       [record = std::shared_ptr<const fake::LaunchRecord>(std::move(record))](
                           CUstream on, bool replayed) { return execute(record, on, replayed); });
}

// The rules are those of the driver API's page on cuTensorMapEncodeTiled.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  {
    fake::Locked state;
    if (const CUresult injected = fake::enter_call(*state, "cuTensorMapEncodeTiled");
        injected != CUDA_SUCCESS)
      return injected;
  }
  const std::uint64_t element_bytes =
      type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1
      : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ||
              type == CU_TENSOR_MAP_DATA_TYPE_UINT16
          ? 2
      : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 || type == CU_TENSOR_MAP_DATA_TYPE_UINT32 ||
              type == CU_TENSOR_MAP_DATA_TYPE_INT32
          ? 4
          : 0;
  if (element_bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return CUDA_ERROR_NOT_SUPPORTED;  // Octile uses no other type
  if (map == nullptr || reinterpret_cast<std::uintptr_t>(map) % 64 != 0 || rank < 1 || rank > 5 ||
      address == nullptr || reinterpret_cast<std::uintptr_t>(address) % 16 != 0)
    return CUDA_ERROR_INVALID_VALUE;
  fake_cuda_tensor_map made = {};
  made.magic = FAKE_CUDA_TENSOR_MAP_MAGIC;
  made.data_type = static_cast<std::uint8_t>(type);
  made.rank = static_cast<std::uint8_t>(rank);
  made.swizzle = static_cast<std::uint8_t>(swizzle);
  made.l2_promotion = static_cast<std::uint8_t>(promotion);
  made.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? 0 : 1;
  made.address = reinterpret_cast<std::uintptr_t>(address);
  for (cuuint32_t d = 0; d < rank; ++d) {
    if (dims[d] == 0 || dims[d] > std::uint64_t{1} << 32 || box[d] == 0 || box[d] > 256 ||
        element_strides[d] == 0 || element_strides[d] > 8)
      return CUDA_ERROR_INVALID_VALUE;
    made.dims[d] = dims[d];
    made.box[d] = box[d];
    if (d == 0) continue;
    if (strides[d - 1] % 16 != 0 || strides[d - 1] >= std::uint64_t{1} << 40)
      return CUDA_ERROR_INVALID_VALUE;
    made.strides_bytes[d - 1] = strides[d - 1];
  }
  const std::uint64_t inner_bytes = box[0] * element_bytes;
  const std::uint64_t span = swizzle == CU_TENSOR_MAP_SWIZZLE_32B    ? 32
                             : swizzle == CU_TENSOR_MAP_SWIZZLE_64B  ? 64
                             : swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128
                                                                     : inner_bytes;
  if (inner_bytes % 16 != 0 || inner_bytes > span) return CUDA_ERROR_INVALID_VALUE;
  static_assert(sizeof(made) <= sizeof(*map));
  *map = {};
  std::memcpy(map, &made, sizeof(made));
  return CUDA_SUCCESS;
}

}  // extern "C"
