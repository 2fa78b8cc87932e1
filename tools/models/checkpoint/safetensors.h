// The headers of .safetensors files: 8 bytes with the length of a JSON text, the text, the data.
// Nothing of the data is read, but a header says where each tensor's is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/error.h"
#include "tools/common/input_file.h"

namespace octile::tools {

struct StoredTensor {
  std::string dtype;  // "BF16", "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // its bytes, in the data of a header or in a file
};
using StoredTensors = std::map<std::string, StoredTensor>;

inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the format's own bound

// Returns the length of the header that the first bytes of a file give. `file_bytes` is the size of
// the file. Errors: kInvalidArgument, beginning with `origin`, for a length beyond the file or
// `most`.
Result<std::uint64_t> safetensors_header_bytes(std::string_view first, std::uint64_t file_bytes,
                                               const std::string& origin,
                                               std::uint64_t most = kMostHeaderBytes);

// Returns the tensors of a header. `data_bytes` are those that follow it. Errors: kInvalidArgument,
// beginning with `origin`, for bytes that are not a header, for shapes and offsets that contradict
// each other or the file, and for tensors that overlap.
Result<StoredTensors> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes,
                                               const std::string& origin);

struct HeaderBounds {
  std::uint64_t most_bytes = kMostHeaderBytes;  // of the header
  // Tensors may lie beyond the end of the file, which was cut.
  bool may_be_cut = false;
};

// Reads the header of a regular file, whose tensors then have their bytes in the file. Parsing a
// header takes nine times its bytes.
Result<StoredTensors> read_safetensors(const InputFile& file, const HeaderBounds& bounds = {});

struct StoredCheckpoint {
  StoredTensors tensors;
  std::string remark;  // says that the folder is a partial download; empty if it is none
};

struct CheckpointFiles {
  std::vector<std::string> files;              // by name
  std::string index;                           // the path of the index; empty: there is none
  std::map<std::string, std::size_t> file_of;  // the tensors that the index lists, and their files
};

// Returns the names of the .safetensors files of a folder: those that model.safetensors.index.json
// names, whether they are there or not, else all. Errors: kInvalidArgument for an index that names
// no file or one elsewhere, or that has more than `most_index_bytes`.
Result<CheckpointFiles> checkpoint_files(const std::string& folder,
                                         std::uint64_t most_index_bytes = kMostHeaderBytes);

// Returns the tensors of the .safetensors files in a folder: those of model.safetensors.index.json,
// else all. Nothing if the folder has none, and only a remark if it has not all of those that the
// index names. Errors: those of the files; kInvalidArgument for an index that names a file
// elsewhere.
Result<StoredCheckpoint> read_checkpoint(const std::string& folder);

}  // namespace octile::tools
