#include "tools/bench/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/api/boundary.h"
#include "tools/command.h"
#include "tools/common/records.h"

namespace octile::tools {

void add_rounds_option(CLI::App& app, int& rounds) {
  add_option(app, "--rounds", rounds, "interleaved rounds; the median is printed").show_default();
}

void add_timing_options(CLI::App& app, SessionOptions& options) {
  add_gpu_option(app, options.device);
  add_records_option(app, options.records);
  add_rounds_option(app, options.rounds);
}

Result<BenchSession> BenchSession::open(std::string_view verb, const SessionOptions& options,
                                        bool with_cublaslt) {
  if (options.rounds < 3) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--rounds is {}; allowed are 3 and more", options.rounds));
  }
  if (Status ok = check_records_file(options.records); !ok) {
    return tl::unexpected<Error>(ok.error());
  }
  auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  auto gpu = GpuSession::open(library->get()->library, options.device);
  if (!gpu) return tl::unexpected<Error>(needs_gpu(verb, gpu.error()));
  BenchSession session(verb, options, std::move(*library), std::move(*gpu));
  if (with_cublaslt) {
    auto cublaslt = CublasLt::open();
    if (!cublaslt) return tl::unexpected<Error>(cublaslt.error());
    session.cublaslt_ = std::move(*cublaslt);
  }
  return session;
}

BenchContext BenchSession::context() const {
  BenchContext context{library_, *gpu_, *templates_, cublaslt_, options_.rounds};
  context.tool = fmt::format("octile {}", verb_);
  return context;
}

Status BenchSession::keep(const std::vector<Record>& records) const {
  return keep_records(options_.records, records);
}

Status BenchSession::finish(const std::vector<Record>& records, std::string_view wrong) const {
  if (options_.json) print_json(document_of(*gpu_, records));
  if (std::ranges::all_of(records, &Record::ok)) return {};
  return fail(ErrorCode::kInternal, fmt::format("{}: {}", verb_, wrong));
}

}  // namespace octile::tools
