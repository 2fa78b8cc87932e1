// octile tune merge, octile tune digest.
#include "tools/tune/verbs.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/tuning_file.h"
#include "runtime/api/boundary.h"
#include "runtime/tuned/record_files.h"
#include "tools/common/input_file.h"
#include "tools/common/output.h"
#include "tools/common/output_file.h"

namespace octile::tools {
namespace {

struct MergeOptions {
  std::vector<std::string> paths;
  std::string out = "-";
};

// Reads a file, and what the user names also from a pipe or standard input.
Result<cache::TuningText> read_tuning_text(const RecordFile& of) {
  const auto file = of.named ? InputFile::open(of.path) : InputFile::open_regular(of.path);
  if (!file) return tl::unexpected<Error>(file.error());
  const auto bytes = file->read_all(cache::kMaxTuningFileBytes);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  return cache::TuningText{file->name(), std::string(bytes->begin(), bytes->end())};
}

Result<int> merge(const MergeOptions& options) {
  const bool printed = options.out == "-";
  const auto all = printed ? merge_records(options.paths, read_tuning_text)
                           : merge_records_into(options.out, options.paths, read_tuning_text);
  if (!all) return tl::unexpected<Error>(all.error());
  const cache::MergedTuning& merged = all->set;
  if (printed) {
    if (Status ok = write_output_file("-", merged.text()); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  for (const std::string& sentence : merged.bad_lines)
    print_stderr("octile: {}; the line is left out\n", sentence);
  for (const std::string& sentence : merged.conflicts) print_stderr("octile: {}\n", sentence);
  print_stderr("octile: {} records of {} files, {} conflicts, {} lines left out\n",
               merged.lines.size(), all->files, merged.conflicts.size(), merged.bad_lines.size());
  return merged.bad_lines.empty() ? 0 : kSomeLinesLeftOut;
}

Result<int> digest(bool json) {
  const auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  const auto records = library->get()->library.engine.records();
  const std::string text = records->digest();
  if (!json) {
    print_stdout("{}\n", text);
    return 0;
  }
  Json sources = Json::array();
  for (const auto& [origin, count] : records->sources())
    sources.push_back({{"origin", origin}, {"records", count}});
  print_json({{"digest", text}, {"sources", std::move(sources)}});
  return 0;
}

}  // namespace

TuneVerbs add_tune_verbs(CLI::App& tune) {
  CLI::App* merge_app =
      add_subcommand(tune, "merge", "fold files of records into one set; needs no GPU",
                     "Exit status: 0 done, 1 failed, 2 bad usage, 3 some lines are not records and "
                     "are left out, 130 interrupted.");
  auto options = std::make_shared<MergeOptions>();
  add_option(*merge_app, "files", options->paths,
             "files of records, or folders: their tuning.jsonl and tuning.d/*.jsonl")
      .require();
  add_option(*merge_app, "--out", options->out, "the file to write; -: standard output")
      .show_default();
  CLI::App* digest_app = add_subcommand(
      tune, "digest",
      "print the digest of the records that this machine would load, for ranks to compare");
  auto json = std::make_shared<bool>(false);
  add_json_option(*digest_app, *json);
  return [merge_app, options, digest_app, json]() -> std::optional<Result<int>> {
    if (is_given(*merge_app)) return merge(*options);
    if (is_given(*digest_app)) return digest(*json);
    return std::nullopt;
  };
}

}  // namespace octile::tools
