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

struct RecordFile {
  std::string path;
  bool named = true;  // by the caller; false: it was found in a folder that the caller named
};

// Returns the files that a path stands for: a folder for its tuning.jsonl and then its
// tuning.d/*.jsonl by name, any other path for itself. Errors: kInvalidArgument for a folder
// without either, and for one that cannot be listed.
Result<std::vector<RecordFile>> record_files_of(const std::string& path);

// Reads a regular file, whose path may be a link. Errors: kInvalidArgument for a file that is not
// regular or cannot be read, and for more than 64 MiB.
Result<cache::TuningText> read_record_file(const RecordFile& file);

struct MergedRecords {
  cache::MergedTuning set;
  std::size_t files = 0;
};
using ReadRecordFile = std::function<Result<cache::TuningText>(const RecordFile& file)>;

// Folds files and folders into one set (cache/tuning_merge.h). `read` reads each file. Errors:
// kInvalidArgument for files that the functions above refuse, and for more bytes or records than a
// reader takes.
Result<MergedRecords> merge_records(const std::vector<std::string>& paths,
                                    const ReadRecordFile& read = read_record_file);

// Does the same and writes the set to a file, which may be one of those read: whole, or what is
// there stays. Nobody else appends to it or replaces it from before the files are read until then
// (cache/appended_lines.h). Errors: also kInvalidArgument if `out` is the path of something else
// than a regular file; kFile if it cannot be written, or others write it for a minute.
Result<MergedRecords> merge_records_into(const std::string& out,
                                         const std::vector<std::string>& paths,
                                         const ReadRecordFile& read = read_record_file);

}  // namespace octile
