// Options and session of every `octile bench` command. The session opens the library, a GPU, and
// cuBLASLt beside them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/bench/measurement.h"
#include "tools/command_line/command_line.h"

namespace octile::tools {

// Where a command times, how often, and what becomes of its records.
struct SessionOptions {
  std::string device = "cuda";
  std::string records;
  int rounds = 30;
  bool json = false;
};

void add_rounds_option(CLI::App& app, int& rounds);

// Adds --device, --records and --rounds.
void add_timing_options(CLI::App& app, SessionOptions& options);

// Returns what runs a subcommand of bench if the command line names it.
template <typename Options>
std::function<std::optional<Status>()> when_given(const CLI::App* app,
                                                  std::shared_ptr<Options> options,
                                                  Status (*run)(const Options&)) {
  return [app, options = std::move(options), run]() -> std::optional<Status> {
    if (!is_given(*app)) return std::nullopt;
    return run(*options);
  };
}

class BenchSession {
 public:
  // Opens cuBLASLt only if `with_cublaslt`. Errors: fewer than three rounds, of which there is no
  // median with a spread; a file of records that holds something else; those of the library and of
  // cuBLASLt; without a GPU, that `verb`, such as "bench linear", needs one.
  static Result<BenchSession> open(std::string_view verb, const SessionOptions& options,
                                   bool with_cublaslt);

  const LibraryHandle& library() const { return library_; }
  const GpuSession& gpu() const { return *gpu_; }
  // The context must not outlive the session.
  BenchContext context() const;

  // Appends the records to the file, if there is one.
  Status keep(const std::vector<Record>& records) const;

  // Prints all records if --json is given. If one is wrong, returns an error that says so in these
  // words, such as "a GEMM is wrong".
  Status finish(const std::vector<Record>& records, std::string_view wrong) const;

 private:
  BenchSession(std::string_view verb, const SessionOptions& options, LibraryHandle library,
               std::unique_ptr<GpuSession> gpu)
      : verb_(verb),
        options_(options),
        library_(std::move(library)),
        gpu_(std::move(gpu)),
        templates_(std::make_unique<LoadedTemplates>(*gpu_)) {}

  std::string verb_;
  SessionOptions options_;
  LibraryHandle library_;
  std::unique_ptr<GpuSession> gpu_;
  std::unique_ptr<LoadedTemplates> templates_;
  std::shared_ptr<const CublasLt> cublaslt_;
};

}  // namespace octile::tools
