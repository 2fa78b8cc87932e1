// The operators' access to PyTorch: allocation, element types, the current stream, and versions.
// All of it comes from the stable ABI of PyTorch 2.10, so one build serves every later version.
#ifndef OCTILE_RUNTIME_PYTHON_TORCH_TENSORS_H_
#define OCTILE_RUNTIME_PYTHON_TORCH_TENSORS_H_

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "octile/octile.h"

namespace octile::binding {

using torch::stable::Tensor;

// Where tensors of a call are, and the stream that the call is enqueued on.
struct Place {
  std::int32_t device_type = 0;
  std::int32_t device_index = 0;
  bool host = true;
  void* stream = nullptr;  // null on the host

  friend bool operator==(const Place&, const Place&) = default;
};

// Returns the place of `tensor`. Throws std::invalid_argument on devices other than CPU and CUDA.
Place place_of(const Tensor& tensor);

// Returns whether the tensor is on the device of `place`.
bool is_at(const Tensor& tensor, const Place& place);

// Throws std::invalid_argument with the text behind "octile: ".
[[noreturn]] void refuse(const std::string& text);
// Throws std::invalid_argument if the tensor is on another device than `place`.
void check_same_place(const Tensor& tensor, const Place& place, const std::string& argument);
// Throws std::invalid_argument unless the tensor is a matrix whose rows are contiguous and do not
// overlap.
void check_rows(const Tensor& tensor, const std::string& argument);
// Returns the stride between the rows of such a matrix.
std::int64_t row_stride(const Tensor& tensor);
// Returns "[2, 3]".
std::string shape_text(const Tensor& tensor);

// Makes a CUDA device the current one while it lives. On the host it does nothing.
class OnDevice {
 public:
  explicit OnDevice(const Place& place);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  DeviceGuardHandle guard_ = nullptr;
};

// PyTorch's number of the element type.
std::int32_t torch_type(octile_dtype type);
std::int32_t torch_uint8();
std::int32_t torch_int32();
std::int32_t type_of(const Tensor& tensor);
// The same of a tensor that is not FP8: bf16, fp16 or fp32.
octile_dtype float_type(const Tensor& tensor, const std::string& argument);

// Returns a bias as a GEMM reads it: itself or a copy. Throws std::invalid_argument unless it is
// bf16 or fp32 [n] on `place`.
Tensor bias_operand(const Tensor& bias, std::int64_t n, const Place& place);

// Returns memory that is not initialised, contiguous.
Tensor empty(const Place& place, std::span<const std::int64_t> sizes, std::int32_t type);
Tensor empty(const Place& place, std::initializer_list<std::int64_t> sizes, std::int32_t type);

// Memory that a call needs while its work runs, none for 0 bytes. It may be freed once the work is
// enqueued: PyTorch gives the memory to later work of the same stream only.
class Workspace {
 public:
  // Writes where the memory is into the arguments of a call.
  template <typename Args>
  Workspace(const Place& place, std::size_t bytes, Args& args) {
    if (bytes > 0) memory_ = empty(place, {static_cast<std::int64_t>(bytes)}, torch_uint8());
    args.workspace = memory_ ? memory_->data_ptr() : nullptr;
    args.workspace_bytes = bytes;
  }

 private:
  std::optional<Tensor> memory_;
};

// Returns a tensor without elements: what an operator returns where it has nothing to return.
Tensor nothing(const Place& place);

// The unit of n and k: rows of FP8 operands begin at multiples of 16 bytes.
inline constexpr std::int64_t kMultiple = 16;

// Returns `tensor` itself if it is contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& tensor);
// Operands and results of a GEMM begin at multiples of it.
inline constexpr std::int64_t kAlign = 16;

// Returns whether the tensor's memory begins at a multiple of `bytes`.
bool begins_at(const Tensor& tensor, std::int64_t bytes);
// Returns a contiguous tensor whose memory begins at a multiple of `bytes`: `tensor` itself if it
// is one. Tensors of a file that is mapped into memory, or of a flat buffer, often are not.
Tensor aligned(const Tensor& tensor, std::int64_t bytes = kAlign);
// Returns a matrix that check_rows takes as a GEMM reads or writes it: every row begins at a
// multiple of 16 bytes. That is `matrix` itself or a contiguous copy.
Tensor aligned_rows(const Tensor& matrix);
// Returns a copy of a matrix of any strides whose rows are contiguous and `ld` elements apart.
Tensor copied_rows(const Tensor& matrix, std::int64_t ld, const Place& place);

// A tensor that a call writes or adds to, and what the call has in its place: the same tensor, or
// an aligned copy.
class Written {
 public:
  Written(const Tensor& tensor, const Tensor& at) : tensor_(tensor), at_(at) {}
  const Tensor& at() const { return at_; }
  // Copies what the call, which is enqueued, writes there to the tensor.
  void finish() const;

 private:
  Tensor tensor_, at_;
};

void fill_zero(const Tensor& tensor);

// Returns another tensor over the same memory. It keeps the memory alive, but not the tensor, as a
// view would.
Tensor alias(const Tensor& tensor);
// Returns the number of writes in place that PyTorch has counted.
std::int64_t version_of(const Tensor& tensor);

}  // namespace octile::binding

#endif  // OCTILE_RUNTIME_PYTHON_TORCH_TENSORS_H_
