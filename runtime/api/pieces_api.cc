// The C API of octile/pieces.h.
#include "octile/pieces.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "runtime/api/boundary.h"
#include "runtime/api/convert.h"
#include "runtime/pieces/pieces.h"

namespace octile::api {
namespace {

// Returns what the pieces have in common, as a quantiser of no columns.
Result<QuantizeProblem> to_common(const octile_pieces_desc* user) {
  octile_pieces_desc desc{};
  if (Status ok = read_struct("desc", user, desc); !ok) return tl::unexpected<Error>(ok.error());
  octile_quantize_desc quantize{};
  quantize.struct_size = sizeof quantize;
  quantize.x_dtype = desc.x_dtype;
  quantize.via_dtype = desc.via_dtype;
  quantize.q_dtype = desc.q_dtype;
  quantize.granularity = desc.granularity;
  quantize.scale_format = desc.scale_format;
  quantize.amax_epsilon = desc.amax_epsilon;
  quantize.e8m0_rounding = desc.e8m0_rounding;
  return to_problem(&quantize);
}

Result<std::vector<Piece>> read_pieces(const octile_piece* user, std::int64_t count) {
  std::vector<Piece> pieces;
  if (Status ok = require("pieces", user); !ok) return tl::unexpected<Error>(ok.error());
  const char* at = reinterpret_cast<const char*>(user);
  const std::size_t stride = user->struct_size;
  for (std::int64_t i = 0; i < count; ++i, at += stride) {
    const auto* const one = reinterpret_cast<const octile_piece*>(at);
    octile_piece piece{};
    const std::string name = fmt::format("pieces[{}]", i);
    if (Status ok = read_struct(name.c_str(), one, piece); !ok)
      return tl::unexpected<Error>(ok.error());
    if (piece.struct_size != stride)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}.struct_size is {}; allowed: {}, that of pieces[0]", name,
                              piece.struct_size, stride));
    pieces.push_back({piece.rows, piece.cols, piece.start, piece.length, piece.x, piece.q,
                      piece.amax, piece.scale, piece.scale_transposed, piece.q_gathered,
                      piece.q_transposed});
  }
  return pieces;
}

Status create_pieces(octile_library* library, const char* device, const octile_pieces_desc* desc,
                     const octile_piece* user, std::int64_t count, octile_pieces** out) {
  if (Status ok = require_handle("library", library); !ok) return ok;
  if (Status ok = require("out", out); !ok) return ok;
  if (Status ok = check_device(device); !ok) return ok;
  const auto common = to_common(desc);
  if (!common) return tl::unexpected<Error>(common.error());
  if (count < 1 || count > kMostPieces)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("count is {}; allowed: 1 to {}", count, kMostPieces));
  auto pieces = read_pieces(user, count);
  if (!pieces) return tl::unexpected<Error>(pieces.error());
  const auto target = target_of(device);
  if (!target) return tl::unexpected<Error>(target.error());
  auto made = Pieces::create(library->library, *common, *target, std::move(*pieces));
  if (!made) return tl::unexpected<Error>(made.error());
  auto handle = std::make_unique<octile_pieces>(std::move(*made), &library->library);
  note_handle(handle.get());
  *out = handle.release();
  ++library->library.pieces;
  return {};
}

Status destroy_pieces(octile_pieces* pieces) {
  if (pieces == nullptr) return {};
  if (Status ok = forget_handle("pieces", pieces); !ok) return ok;
  Library& library = *pieces->library;
  delete pieces;
  --library.pieces;
  return {};
}

}  // namespace
}  // namespace octile::api

using namespace octile::api;  // NOLINT(google-build-using-namespace): the C functions are its face
using octile::Status;

octile_status octile_pieces_create(octile_library* library, const char* device,
                                   const octile_pieces_desc* desc, const octile_piece* pieces,
                                   int64_t count, octile_pieces** out) {
  return call([&] { return create_pieces(library, device, desc, pieces, count, out); });
}

octile_status octile_pieces_run(octile_pieces* pieces, octile_pieces_step step, int64_t first,
                                int64_t count, void* stream) {
  return call([&]() -> Status {
    if (Status ok = require_handle("pieces", pieces); !ok) return ok;
    const int which = raw(step);
    if (Status ok = check_enum("step", "octile_pieces_step", which, OCTILE_PIECES_AMAX,
                               OCTILE_PIECES_TRANSPOSE);
        !ok)
      return ok;
    return pieces->pieces->run(static_cast<octile::PiecesStep>(which), first, count,
                               static_cast<CUstream>(stream));
  });
}

octile_status octile_pieces_destroy(octile_pieces* pieces) {
  return call([&] { return destroy_pieces(pieces); });
}
