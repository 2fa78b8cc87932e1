#include "tests/gpu/guarded_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace octile::tests {
namespace {

// The functions of the driver that the library itself does not need.
struct MappingApi {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuCtxGetDevice) device = nullptr;
  bool whole = false;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

const MappingApi& api() {
  static const MappingApi functions = [] {
    MappingApi f;
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) return f;
    f.whole = find(library, "cuMemGetAllocationGranularity", f.granularity) &&
              find(library, "cuMemAddressReserve", f.reserve) &&
              find(library, "cuMemAddressFree", f.free) && find(library, "cuMemCreate", f.create) &&
              find(library, "cuMemRelease", f.release) && find(library, "cuMemMap", f.map) &&
              find(library, "cuMemUnmap", f.unmap) &&
              find(library, "cuMemSetAccess", f.set_access) &&
              find(library, "cuCtxGetDevice", f.device);
    return f;
  }();
  return functions;
}

}  // namespace

// Reserves addresses for one granule more on both sides, and maps what lies between.
CUresult GuardedMemory::map(std::size_t bytes) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUdevice device = 0;
  CUresult result = api().device(&device);
  properties.location.id = device;
  std::size_t granule = 0;
  if (result == CUDA_SUCCESS)
    result = api().granularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  mapped_bytes_ = (bytes + granule - 1) / granule * granule;
  result = api().reserve(&reserved_, mapped_bytes_ + 2 * granule, granule, 0, 0);
  if (result != CUDA_SUCCESS) return result;
  reserved_bytes_ = mapped_bytes_ + 2 * granule;
  result = api().create(&memory_, mapped_bytes_, &properties, 0);
  if (result != CUDA_SUCCESS) return result;
  result = api().map(reserved_ + granule, mapped_bytes_, 0, memory_, 0);
  if (result != CUDA_SUCCESS) return result;
  mapped_ = reserved_ + granule;
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return api().set_access(mapped_, mapped_bytes_, &access, 1);
}

std::unique_ptr<GuardedMemory> GuardedMemory::allocate(std::size_t bytes, std::string& why) {
  if (!api().whole) {
    why = "the driver has no functions that map memory";
    return nullptr;
  }
  std::unique_ptr<GuardedMemory> memory(new GuardedMemory);
  if (const CUresult result = memory->map(bytes); result != CUDA_SUCCESS) {
    why = fmt::format("mapping {} bytes failed with CUresult {}", bytes, static_cast<int>(result));
    return nullptr;
  }
  return memory;
}

GuardedMemory::~GuardedMemory() {
  if (mapped_ != 0) api().unmap(mapped_, mapped_bytes_);
  if (memory_ != 0) api().release(memory_);
  if (reserved_ != 0) api().free(reserved_, reserved_bytes_);
}

}  // namespace octile::tests
