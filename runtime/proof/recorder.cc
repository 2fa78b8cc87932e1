#include "runtime/proof/recorder.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace octile {
namespace {

thread_local LaunchRecorder* recorder_of_thread = nullptr;

// Every kernel takes one struct.
std::size_t bytes_of(const std::vector<int>& parameters) {
  return static_cast<std::size_t>(std::accumulate(parameters.begin(), parameters.end(), 0));
}

template <typename Recorded>
std::string text_of(const Recorded& recorded) {
  return {reinterpret_cast<const char*>(&recorded), sizeof recorded};
}

}  // namespace

LaunchRecorder::LaunchRecorder(const Driver& driver, const KernelBuild& build)
    : driver_(driver.with([](DriverApi& api) {
        api.cuLaunchKernelEx = record_launch;
        api.cuMemsetD2D8Async = record_clear;
        api.cuTensorMapEncodeTiled = record_map;
      })),
      parameter_bytes_{bytes_of(build.emitted.parameter_bytes)} {
  for (const EntryPoint& companion : build.emitted.companions)
    parameter_bytes_.push_back(bytes_of(companion.parameter_bytes));
  recorder_of_thread = this;
}

LaunchRecorder::~LaunchRecorder() { recorder_of_thread = nullptr; }

// A handle is the number of its kernel, from 1, because 0 is none.
LoadedKernel LaunchRecorder::kernels() const {
  const auto handle = [](std::size_t number) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): nothing is read through it
    return KernelHandle{reinterpret_cast<CUkernel>(number + 1), nullptr, false};
  };
  LoadedKernel loaded;
  loaded.kernel = handle(0);
  for (std::size_t i = 1; i < parameter_bytes_.size(); ++i) loaded.companions.push_back(handle(i));
  return loaded;
}

CUresult LaunchRecorder::record_launch(const CUlaunchConfig* config, CUfunction function,
                                       void** parameters, void** extra) {
  LaunchRecorder& self = *recorder_of_thread;
  const auto number = reinterpret_cast<std::uintptr_t>(function) - 1;
  const bool is_along_x = config->gridDimY == 1 && config->gridDimZ == 1 &&
                          config->blockDimY == 1 && config->blockDimZ == 1;
  if (!is_along_x || extra != nullptr || number >= self.parameter_bytes_.size())
    return CUDA_ERROR_NOT_SUPPORTED;
  RecordedLaunch launch;
  launch.kernel = static_cast<std::int32_t>(number);
  launch.blocks = config->gridDimX;
  launch.threads = config->blockDimX;
  launch.smem_bytes = config->sharedMemBytes;
  for (const CUlaunchAttribute& attribute : std::span(config->attrs, config->numAttrs)) {
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      launch.waits_itself = 1;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      launch.cluster = attribute.value.clusterDim.x;
    } else {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  self.add_launch(launch, parameters[0], self.parameter_bytes_[number]);
  return CUDA_SUCCESS;
}

// The maps that lie in the parameter are the launch's.
void LaunchRecorder::add_launch(const RecordedLaunch& launch, const void* parameter,
                                std::size_t bytes) {
  RecordedLaunch with_maps = launch;
  std::string maps;
  for (auto& [place, map] : maps_) {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(place) - reinterpret_cast<std::uintptr_t>(parameter);
    if (offset >= bytes) continue;
    map.offset = static_cast<std::uint32_t>(offset);
    maps += text_of(map);
    ++with_maps.maps;
  }
  maps_.clear();
  std::string& text = launches_.emplace_back(text_of(with_maps) + maps);
  text.append(static_cast<const char*>(parameter), bytes);
}

CUresult LaunchRecorder::record_clear(CUdeviceptr address, std::size_t pitch, unsigned char value,
                                      std::size_t width, std::size_t height, CUstream /*stream*/) {
  if (value != 0) return CUDA_ERROR_NOT_SUPPORTED;
  RecordedLaunch clear;
  clear.kernel = kClears;
  clear.address = address;
  clear.pitch_bytes = pitch;
  clear.width_bytes = width;
  clear.rows = height;
  recorder_of_thread->launches_.push_back(text_of(clear));
  return CUDA_SUCCESS;
}

CUresult LaunchRecorder::record_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                    void* address, const cuuint64_t* dims,
                                    const cuuint64_t* strides, const cuuint32_t* box,
                                    const cuuint32_t* element_strides,
                                    CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                    CUtensorMapL2promotion promotion,
                                    CUtensorMapFloatOOBfill fill) {
  RecordedMap recorded;
  if (rank < 1 || rank > recorded.dims.size()) return CUDA_ERROR_INVALID_VALUE;
  recorded.type = type;
  recorded.rank = rank;
  recorded.address = reinterpret_cast<std::uintptr_t>(address);
  std::copy_n(dims, rank, recorded.dims.begin());
  std::copy_n(strides, rank - 1, recorded.strides.begin());
  std::copy_n(box, rank, recorded.box.begin());
  std::copy_n(element_strides, rank, recorded.element_strides.begin());
  recorded.interleave = interleave;
  recorded.swizzle = swizzle;
  recorded.promotion = promotion;
  recorded.fill = fill;
  recorder_of_thread->maps_.emplace_back(map, recorded);
  return CUDA_SUCCESS;
}

}  // namespace octile
