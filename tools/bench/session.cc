#include "tools/bench/session.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/api/boundary.h"
#include "tools/command.h"

namespace octile::tools {

Status check_rounds(int rounds) {
  if (rounds >= 3) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("--rounds is {}; allowed are 3 and more", rounds));
}

Result<BenchSession> BenchSession::open(std::string_view verb, const std::string& device,
                                        bool with_cublaslt) {
  auto library = LibraryHandle::create();
  if (!library) return tl::unexpected<Error>(library.error());
  auto gpu = GpuSession::open(library->get()->library, device);
  if (!gpu) return tl::unexpected<Error>(needs_gpu(verb, gpu.error()));
  BenchSession session(verb, std::move(*library), std::move(*gpu));
  if (with_cublaslt) {
    auto cublaslt = CublasLt::open();
    if (!cublaslt) return tl::unexpected<Error>(cublaslt.error());
    session.cublaslt_ = std::move(*cublaslt);
  }
  return session;
}

BenchContext BenchSession::context(int rounds) const {
  BenchContext context{library_, *gpu_, *templates_, cublaslt_, rounds};
  context.tool = fmt::format("octile {}", verb_);
  return context;
}

}  // namespace octile::tools
