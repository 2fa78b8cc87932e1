// The headers of .npy files (NumPy's format, versions 1 to 3): a magic word, a length, and a Python
// literal with type, order and shape.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/core/error.h"
#include "tools/common/input_file.h"
#include "tools/models/checkpoint/safetensors.h"

namespace octile::tools {

// The bytes at the beginning of a file that have the header's length, and the most that a header
// has.
inline constexpr std::size_t kNpyLengthBytes = 12;
inline constexpr std::size_t kMostNpyHeaderBytes = std::size_t{1} << 16;

struct NpyArray {
  StoredTensor tensor;
  bool is_by_columns = false;  // fortran_order: column behind column
};

// Returns the bytes before the data, which the first kNpyLengthBytes say. Errors: kInvalidArgument,
// beginning with `origin`, for others than a .npy file of a known version, and for a header that is
// longer than the file or the bound.
Result<std::uint64_t> npy_header_bytes(std::string_view first, std::uint64_t file_bytes,
                                       const std::string& origin);

// Returns the array of a header with its bytes in the file; types have the names of safetensors. An
// array of |V2, as NumPy stores ml_dtypes' bfloat16, is BF16. Errors: kInvalidArgument, beginning
// with `origin`, for a header that cannot be read, an array that is not the file's rest, or of a
// type that is not a float's; for one of three dimensions and more by columns, whose matrices are
// not contiguous.
Result<NpyArray> parse_npy_header(std::string_view header, std::uint64_t file_bytes,
                                  const std::string& origin);

// Reads the header of a regular file.
Result<NpyArray> read_npy(const InputFile& file);

}  // namespace octile::tools
