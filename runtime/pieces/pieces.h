// Pieces: flat ranges of many weights, quantised step by step, each step in one launch.
// octile/pieces.h documents the calls.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "generator/core/error.h"
#include "generator/quantize/pieces.h"
#include "runtime/driver/buffer.h"
#include "runtime/engine/library.h"
#include "runtime/engine/plan.h"

namespace octile {

inline constexpr std::int64_t kMostPieces = std::int64_t{1} << 20;

class Pieces {
 public:
  // Checks the pieces, compiles the kernels of the steps that any piece takes, and copies their
  // table to the device. `common` is a problem of problem_of(). The library outlives the pieces.
  // Errors: kInvalidArgument, which names the piece and its field; as Plan::create and prepare.
  static Result<std::unique_ptr<Pieces>> create(Library& library, const QuantizeProblem& common,
                                                const Target& target, std::vector<Piece> pieces);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // Enqueues a step of pieces first to first + count - 1. A call that succeeds takes no lock,
  // allocates nothing and formats nothing, except on the host.
  Status run(PiecesStep which, std::int64_t first, std::int64_t count, CUstream stream) const;

 private:
  // The data for the launches of a step. Without a device the table is null.
  struct Step {
    std::shared_ptr<Plan> plan;  // null: no piece takes the step
    const PieceTableRow* rows = nullptr;
    const std::uint32_t* first_blocks = nullptr;
    std::vector<std::uint32_t> first_blocks_on_host;
  };

  Pieces(const QuantizeProblem& common, std::vector<Piece> pieces)
      : common_(common), pieces_(std::move(pieces)) {}

  Step& step(PiecesStep which) { return steps_[static_cast<std::size_t>(which) - 1]; }
  const Step& step(PiecesStep which) const { return steps_[static_cast<std::size_t>(which) - 1]; }
  Status make_plans(Library& library, const Target& target);
  Status make_tables();
  Status check_transposes(std::int64_t first, std::int64_t count) const;
  Status run_on_host(PiecesStep which, const Piece& piece) const;

  QuantizeProblem common_;
  std::vector<Piece> pieces_;
  std::vector<std::int64_t> transposes_before_;  // how many of the pieces before can be transposed
  std::array<Step, kPiecesSteps> steps_;
  DeviceBuffer table_;
};

// Refuses a piece that the steps cannot take; `index` is its place in the array.
Status check_piece(const QuantizeProblem& common, const Piece& piece, std::int64_t index);

}  // namespace octile
