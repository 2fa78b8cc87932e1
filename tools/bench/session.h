// The session that every `octile bench` command opens: the library, a GPU, and cuBLASLt beside
// them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tools/bench/measurement.h"

namespace octile::tools {

// Refuses fewer than three rounds, of which there is no median with a spread.
Status check_rounds(int rounds);

class BenchSession {
 public:
  // Opens cuBLASLt only if `with_cublaslt`. Errors: those of each; without a GPU, that `verb`, such
  // as "bench linear", needs one.
  static Result<BenchSession> open(std::string_view verb, const std::string& device,
                                   bool with_cublaslt);

  const LibraryHandle& library() const { return library_; }
  const GpuSession& gpu() const { return *gpu_; }
  // The context must not outlive the session.
  BenchContext context(int rounds) const;

 private:
  BenchSession(std::string_view verb, LibraryHandle library, std::unique_ptr<GpuSession> gpu)
      : verb_(verb),
        library_(std::move(library)),
        gpu_(std::move(gpu)),
        templates_(std::make_unique<LoadedTemplates>(*gpu_)) {}

  std::string verb_;
  LibraryHandle library_;
  std::unique_ptr<GpuSession> gpu_;
  std::unique_ptr<LoadedTemplates> templates_;
  std::shared_ptr<const CublasLt> cublaslt_;
};

}  // namespace octile::tools
