// Files of tuning records that a caller names: listed, read, folded into one set and written.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/tuning_merge.h"
#include "generator/core/error.h"

namespace octile {

// Returns the files that a path stands for: a folder for its tuning.jsonl and then its
// tuning.d/*.jsonl by name, any other path for itself. Errors: kInvalidArgument for a folder
// without either, and for one that cannot be listed.
Result<std::vector<std::string>> record_files_of(const std::string& path);

// Reads a file, whose path may be a link. Errors: kInvalidArgument for what cannot be read, and for
// more than 64 MiB.
Result<cache::TuningText> read_record_file(const std::string& path);

struct MergedRecords {
  cache::MergedTuning set;
  std::size_t files = 0;
};
using ReadRecordFile = std::function<Result<cache::TuningText>(const std::string& path)>;

// Folds files and folders into one set (cache/tuning_merge.h). `read` reads each file. Errors:
// kInvalidArgument for what the functions above refuse, and for more records than a reader takes.
Result<MergedRecords> merge_records(const std::vector<std::string>& paths,
                                    const ReadRecordFile& read = read_record_file);

// Writes a file whole, or leaves what is there: through a temporary file beside it, which is
// renamed. Errors: kInvalidArgument if the path is that of something else than a regular file;
// kInternal if it cannot be written.
Status write_record_file(const std::string& path, std::string_view text);

}  // namespace octile
