#include "tensors.h"

#include <array>
#include <optional>
#include <stdexcept>
#include <vector>

// Only builds of PyTorch with CUDA have it; libtorch.so brings it in.
extern "C" __attribute__((weak)) AOTITorchError
aoti_torch_get_current_cuda_stream(std::int32_t device_index, void** ret_stream);

namespace octile::binding {
namespace {

void check(AOTITorchError error, const char* what) {
  if (error != TORCH_SUCCESS)
    throw std::runtime_error(std::string("octile: PyTorch failed in ") + what);
}

// Calls an operator of PyTorch with one argument and one result.
StableIValue call(const char* name, const Tensor& argument) {
  StableIValue stack[] = {torch::stable::detail::from(argument)};
  check(torch_call_dispatcher(name, "", stack, TORCH_ABI_VERSION), name);
  return stack[0];
}

// PyTorch's numbers, asked for when the extension is loaded: a table that the first call makes
// could be half made when a process forks.
const std::int32_t kCpu = aoti_torch_device_type_cpu();
const std::int32_t kCuda = aoti_torch_device_type_cuda();
const std::int32_t kUint8 = aoti_torch_dtype_uint8();
const std::int32_t kInt32 = aoti_torch_dtype_int32();
const std::array<std::int32_t, 6> kTypes{0,
                                         aoti_torch_dtype_float8_e4m3fn(),
                                         aoti_torch_dtype_float8_e5m2(),
                                         aoti_torch_dtype_bfloat16(),
                                         aoti_torch_dtype_float16(),
                                         aoti_torch_dtype_float32()};

// Copies `from` to `to`, which have the same shape.
void copy_to(const Tensor& to, const Tensor& from) {
  StableIValue stack[] = {torch::stable::detail::from(to), torch::stable::detail::from(from),
                          torch::stable::detail::from(true)};
  check(torch_call_dispatcher("aten::copy_", "", stack, TORCH_ABI_VERSION), "copy_");
  torch::stable::detail::to<Tensor>(stack[0]);  // which the call returns: another one to release
}

// Returns a tensor whose memory is not initialised.
Tensor empty_strided(const Place& place, std::span<const std::int64_t> sizes,
                     const std::int64_t* strides, std::int32_t type) {
  AtenTensorHandle handle = nullptr;
  check(aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides,
                                 type, place.device_type, place.device_index, &handle),
        "empty_strided");
  return Tensor(handle);
}

// Returns a contiguous copy.
Tensor copy_of(const Tensor& tensor) {
  StableIValue stack[] = {
      torch::stable::detail::from(tensor),
      torch::stable::detail::from(std::optional(torch::headeronly::MemoryFormat::Contiguous))};
  check(torch_call_dispatcher("aten::clone", "", stack, TORCH_ABI_VERSION), "clone");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace

bool is_at(const Tensor& tensor, const Place& place) {
  std::int32_t type = 0, index = 0;
  check(aoti_torch_get_device_type(tensor.get(), &type), "device_type");
  if (type != place.device_type || place.host) return type == place.device_type;
  check(aoti_torch_get_device_index(tensor.get(), &index), "device_index");
  return index == place.device_index;
}

void refuse(const std::string& text) { throw std::invalid_argument("octile: " + text); }

void check_same_place(const Tensor& tensor, const Place& place, const std::string& argument) {
  if (!is_at(tensor, place)) refuse(argument + " is on another device");
}

void check_rows(const Tensor& tensor, const std::string& argument) {
  if (tensor.dim() != 2) refuse(argument + " is " + shape_text(tensor) + "; allowed is a matrix");
  if (tensor.numel() == 0) return;  // strides mean nothing
  const bool rows = tensor.size(1) <= 1 || tensor.stride(1) == 1;
  if (!rows || (tensor.size(0) > 1 && tensor.stride(0) < tensor.size(1))) {
    refuse(argument + " has strides (" + std::to_string(tensor.stride(0)) + ", " +
           std::to_string(tensor.stride(1)) + "); allowed are rows that are contiguous");
  }
}

std::int64_t row_stride(const Tensor& tensor) {
  return tensor.size(0) > 1 ? tensor.stride(0) : tensor.size(1);
}

std::string shape_text(const Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

Place place_of(const Tensor& tensor) {
  Place place;
  check(aoti_torch_get_device_type(tensor.get(), &place.device_type), "device_type");
  if (place.device_type == kCpu) return place;
  if (place.device_type != kCuda) {
    throw std::invalid_argument(
        "octile: a tensor is on a device that is neither a CPU nor a CUDA GPU");
  }
  place.host = false;
  check(aoti_torch_get_device_index(tensor.get(), &place.device_index), "device_index");
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    throw std::runtime_error("octile: this PyTorch was built without CUDA");
  }
  check(aoti_torch_get_current_cuda_stream(place.device_index, &place.stream), "current_stream");
  return place;
}

OnDevice::OnDevice(const Place& place) {
  if (!place.host)
    check(aoti_torch_create_device_guard(place.device_index, &guard_), "device_guard");
}
OnDevice::~OnDevice() {
  if (guard_ != nullptr) aoti_torch_delete_device_guard(guard_);
}

std::int32_t torch_uint8() { return kUint8; }
std::int32_t torch_int32() { return kInt32; }

std::int32_t torch_type(octile_dtype type) { return kTypes.at(static_cast<std::size_t>(type)); }

std::int32_t type_of(const Tensor& tensor) {
  std::int32_t type = 0;
  check(aoti_torch_get_dtype(tensor.get(), &type), "dtype");
  return type;
}

octile_dtype float_type(const Tensor& tensor, const std::string& argument) {
  const std::int32_t type = type_of(tensor);
  for (const octile_dtype known : {OCTILE_BF16, OCTILE_FP32, OCTILE_FP16}) {
    if (type == torch_type(known)) return known;
  }
  refuse(
      argument +
      " has an element type that is not allowed here; allowed are bfloat16, float16 and float32");
}

Tensor bias_operand(const Tensor& bias, std::int64_t n, const Place& place) {
  if (bias.dim() != 1 || bias.size(0) != n) {
    refuse("bias is " + shape_text(bias) + "; allowed is [" + std::to_string(n) + "]");
  }
  check_same_place(bias, place, "bias");
  if (float_type(bias, "bias") == OCTILE_FP16) {
    refuse("bias is float16; allowed are bfloat16 and float32");
  }
  return aligned(bias, 2 * static_cast<std::int64_t>(bias.element_size()));
}

Tensor empty(const Place& place, std::span<const std::int64_t> sizes, std::int32_t type) {
  std::int64_t strides[16];
  if (sizes.size() > std::size(strides)) {
    throw std::invalid_argument("octile: a tensor has more than 16 dimensions");
  }
  std::int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return empty_strided(place, sizes, strides, type);
}

Tensor empty(const Place& place, std::initializer_list<std::int64_t> sizes, std::int32_t type) {
  return empty(place, std::span(sizes.begin(), sizes.size()), type);
}

Tensor nothing(const Place& place) { return empty(place, {0}, torch_uint8()); }

Tensor contiguous(const Tensor& tensor) {
  if (tensor.is_contiguous()) return tensor;
  StableIValue stack[] = {torch::stable::detail::from(tensor),
                          torch::stable::detail::from(torch::headeronly::MemoryFormat::Contiguous)};
  check(torch_call_dispatcher("aten::contiguous", "", stack, TORCH_ABI_VERSION), "contiguous");
  return torch::stable::detail::to<Tensor>(stack[0]);
}

bool begins_at(const Tensor& tensor, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % static_cast<std::uintptr_t>(bytes) ==
         0;
}

Tensor aligned(const Tensor& tensor, std::int64_t bytes) {
  return tensor.is_contiguous() && begins_at(tensor, bytes) ? tensor : copy_of(tensor);
}

Tensor aligned_rows(const Tensor& matrix) {
  const auto element = static_cast<std::int64_t>(matrix.element_size());
  const bool rows = row_stride(matrix) * element % kAlign == 0;
  return rows && begins_at(matrix, kAlign) ? matrix : copy_of(matrix);
}

Tensor copied_rows(const Tensor& matrix, std::int64_t ld, const Place& place) {
  const std::int64_t sizes[] = {matrix.size(0), matrix.size(1)}, strides[] = {ld, 1};
  const Tensor copy = empty_strided(place, sizes, strides, type_of(matrix));
  copy_to(copy, matrix);
  return copy;
}

void Written::finish() const {
  if (at_.get() == tensor_.get()) return;
  copy_to(alias(tensor_), at_);
}

void fill_zero(const Tensor& tensor) { check(aoti_torch_zero_(tensor.get()), "zero_"); }

Tensor alias(const Tensor& tensor) {
  return torch::stable::detail::to<Tensor>(call("aten::detach", tensor));
}

std::int64_t version_of(const Tensor& tensor) {
  return torch::stable::detail::to<std::int64_t>(call("aten::_version", tensor));
}

}  // namespace octile::binding
