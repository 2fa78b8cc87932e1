// Device memory, implemented as host memory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tests/fake_driver/state.h"

namespace {

constexpr std::size_t kAlignment = 256;  // guaranteed by cuMemAlloc

// Returns the allocation that holds [pointer, pointer + bytes), or null.
const fake::Allocation* find_range(const fake::State& state, CUdeviceptr pointer,
                                   std::size_t bytes) {
  auto after = state.allocations.upper_bound(pointer);
  if (after == state.allocations.begin()) return nullptr;
  const auto& [start, allocation] = *--after;
  const std::size_t offset = pointer - start;
  if (offset >= allocation.size || bytes > allocation.size - offset) return nullptr;
  return &allocation;
}

bool in_range(const fake::State& state, CUdeviceptr pointer, std::size_t bytes) {
  return bytes == 0 || find_range(state, pointer, bytes) != nullptr;
}

CUresult enqueue_copy(fake::Locked& state, void* to, const void* from, std::size_t bytes,
                      CUstream stream) {
  return fake::enqueue(state, stream, [=](CUstream, bool) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return CUDA_SUCCESS;
  });
}

void* host(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  FAKE_ENTER_WITH_CONTEXT(cuMemGetInfo_v2);
  std::size_t used = 0;
  for (const auto& [pointer, allocation] : state->allocations)
    if (allocation.context == fake::current_context(*state)) used += allocation.size;
  *total_bytes = state->memory_bytes;
  *free_bytes = state->memory_bytes - std::min(used, state->memory_bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  FAKE_ENTER_WITH_CONTEXT(cuMemAlloc_v2);
  if (const CUresult unsafe = fake::check_unsafe_call(*state); unsafe != CUDA_SUCCESS)
    return unsafe;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const CUcontext context = fake::current_context(*state);
  std::size_t used = 0;
  for (const auto& [start, allocation] : state->allocations)
    if (allocation.context == context) used += allocation.size;
  if (used > state->memory_bytes || bytes > state->memory_bytes - used)
    return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = reinterpret_cast<CUdeviceptr>(memory);
  state->allocations.emplace(
      *pointer, fake::Allocation{.bytes = {static_cast<std::uint8_t*>(memory), &std::free},
                                 .size = bytes,
                                 .context = context});
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
  FAKE_ENTER_WITH_CONTEXT(cuMemFree_v2);
  if (const CUresult unsafe = fake::check_unsafe_call(*state); unsafe != CUDA_SUCCESS)
    return unsafe;
  if (pointer == 0) return CUDA_SUCCESS;
  return state->allocations.erase(pointer) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemcpyHtoDAsync_v2);
  if (!in_range(*state, to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return enqueue_copy(state, host(to), from, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemcpyDtoHAsync_v2);
  if (!in_range(*state, from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return enqueue_copy(state, to, host(from), bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemcpyDtoDAsync_v2);
  if (!in_range(*state, to, bytes) || !in_range(*state, from, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return enqueue_copy(state, host(to), host(from), bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemsetD8Async);
  if (!in_range(*state, to, count)) return CUDA_ERROR_INVALID_VALUE;
  return fake::enqueue(state, stream, [=](CUstream, bool) {
    if (count != 0) std::memset(host(to), value, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemsetD32Async);
  if (to % sizeof(value) != 0 || count > SIZE_MAX / sizeof(value) ||
      !in_range(*state, to, count * sizeof(value)))
    return CUDA_ERROR_INVALID_VALUE;
  return fake::enqueue(state, stream, [=](CUstream, bool) {
    std::fill_n(static_cast<unsigned int*>(host(to)), count, value);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                           size_t height, CUstream stream) {
  FAKE_ENTER_WITH_CONTEXT(cuMemsetD2D8Async);
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  if (pitch < width || (height - 1) > (SIZE_MAX - width) / pitch ||
      !in_range(*state, to, (height - 1) * pitch + width))
    return CUDA_ERROR_INVALID_VALUE;
  return fake::enqueue(state, stream, [=](CUstream, bool) {
    for (std::size_t row = 0; row < height; ++row)
      std::memset(static_cast<std::uint8_t*>(host(to)) + row * pitch, value, width);
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  FAKE_ENTER(cuPointerGetAttribute);
  const fake::Allocation* allocation = find_range(*state, pointer, 1);
  if (allocation == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = allocation->context;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(data) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation->context->device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = reinterpret_cast<CUdeviceptr>(allocation->bytes.get());
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = allocation->size;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // extern "C"
