// Device memory whose neighbours are not mapped, so that a GPU faults on the first byte outside it.
// A buffer of cuMemAlloc ends within pages that hold other tensors.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>
#include <string>

namespace octile::tests {

// The end of a tensor that lies at an end of the memory.
enum class GuardedEnd : int { kFirst, kLast };

class GuardedMemory {
 public:
  // Returns room for at least `bytes` bytes; null, and the reason in `why`, if the driver cannot
  // map memory on the current device.
  static std::unique_ptr<GuardedMemory> allocate(std::size_t bytes, std::string& why);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::size_t bytes() const { return mapped_bytes_; }
  // Returns where a tensor of `bytes` bytes begins if that end of it is the memory's.
  CUdeviceptr at(GuardedEnd end, std::size_t bytes) const {
    return end == GuardedEnd::kLast ? mapped_ + (mapped_bytes_ - bytes) : mapped_;
  }

 private:
  GuardedMemory() = default;
  CUresult map(std::size_t bytes);

  CUdeviceptr reserved_ = 0, mapped_ = 0;
  std::size_t reserved_bytes_ = 0, mapped_bytes_ = 0;
  CUmemGenericAllocationHandle memory_ = 0;
};

}  // namespace octile::tests
