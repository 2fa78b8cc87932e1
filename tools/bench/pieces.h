// The steps of a sharded optimizer over the weights of a model (octile/pieces.h), each beside a
// stream of as many bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generator/quantize/pieces.h"
#include "tools/bench/measurement.h"
#include "tools/command_line/command_line.h"
#include "tools/models/config/model.h"

namespace octile::tools {

// How the weights lie on the ranks.
enum class RankCut : int {
  kRows,  // every rank has as many rows of each weight, as FSDP2 gives them
  kFlat,  // the weights lie behind each other and are cut into equal ranges, as ZeRO-1 gives them
};
std::string_view name_of(RankCut cut);

// The weights of a model and the ranges that the middle one of the ranks holds.
struct RankPieces {
  std::string what;           // what records call it
  std::vector<Piece> pieces;  // without pointers
  std::int64_t elements = 0;  // of all weights
  std::int64_t held = 0;      // of the rank's ranges
};

// Returns the pieces of `layers` layers of a model: its linear layers besides experts, fused as in
// serving. Errors: kInvalidArgument for more than 4096
// layers or ranks.
Result<RankPieces> pieces_of(const Model& model, const std::string& name, std::int64_t layers,
                             std::int64_t ranks, RankCut cut);

// Runs all steps once and compares codes with the host reference, then times each step and its
// stream in one interleaved run. Returns a record for each step. Errors: those of preparing,
// running and measuring.
Result<std::vector<Record>> bench_pieces(const BenchContext& context, const QuantizeProblem& common,
                                         const RankPieces& rank);

// Adds `bench pieces`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_pieces(CLI::App& bench);

}  // namespace octile::tools
