#include "tools/tune/record_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cache/tuning_file.h"
#include "tools/command.h"
#include "tools/common/input_file.h"

namespace octile::tools {
namespace {

namespace fs = std::filesystem;

// Returns the files of records of a folder, by name.
Result<std::vector<std::string>> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  const fs::path ranks = fs::path(folder) / "tuning.d";
  for (fs::directory_iterator at(ranks, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".jsonl") files.push_back(at->path().string());
  if (error && error != std::errc::no_such_file_or_directory)
    return refuse(fmt::format("{}: {}", ranks.string(), error.message()));
  std::ranges::sort(files);
  const fs::path whole = fs::path(folder) / "tuning.jsonl";
  if (fs::exists(whole, error)) files.insert(files.begin(), whole.string());
  if (files.empty())
    return refuse(fmt::format(
        "{} has no records; allowed: a folder with tuning.jsonl or tuning.d/*.jsonl", folder));
  return files;
}

}  // namespace

Result<std::vector<cache::TuningText>> read_tuning_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const auto some = files_of(path);
    if (!some) return tl::unexpected<Error>(some.error());
    files.insert(files.end(), some->begin(), some->end());
  }
  std::vector<cache::TuningText> texts;
  for (const std::string& path : files) {
    const auto file = InputFile::open(path);
    if (!file) return tl::unexpected<Error>(file.error());
    const auto bytes = file->read_all(cache::kMaxTuningFileBytes);
    if (!bytes) return tl::unexpected<Error>(bytes.error());
    texts.push_back({file->name(), std::string(bytes->begin(), bytes->end())});
  }
  return texts;
}

}  // namespace octile::tools
