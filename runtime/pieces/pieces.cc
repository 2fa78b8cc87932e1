#include "runtime/pieces/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/engine/plan_run.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/reference/quantize/reference_range.h"

namespace octile {
namespace {

constexpr std::array kSteps{PiecesStep::kAmax, PiecesStep::kScales, PiecesStep::kCast,
                            PiecesStep::kTranspose};

// The bytes of a table, in parts that begin at multiples of 16.
class TableBytes {
 public:
  // Adds an array and returns its offset.
  template <typename T>
  std::size_t add(const std::vector<T>& values) {
    const std::size_t offset = bytes_.size();
    const std::size_t count = values.size() * sizeof(T);
    bytes_.resize(offset + (count + 15) / 16 * 16);
    std::memcpy(bytes_.data() + offset, values.data(), count);
    return offset;
  }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  std::vector<char> bytes_;
};

}  // namespace

Result<std::unique_ptr<Pieces>> Pieces::create(Library& library, const QuantizeProblem& common,
                                               const Target& target, std::vector<Piece> pieces) {
  const auto count = static_cast<std::int64_t>(pieces.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const Status ok = check_piece(common, pieces[static_cast<std::size_t>(i)], i);
    if (!ok) return tl::unexpected<Error>(ok.error());
  }
  std::unique_ptr<Pieces> made(new Pieces(common, std::move(pieces)));
  made->transposes_before_.push_back(0);
  for (const Piece& piece : made->pieces_) {
    const bool can = piece.q_transposed != nullptr || piece.rows == 0 || piece.cols == 0;
    made->transposes_before_.push_back(made->transposes_before_.back() + (can ? 1 : 0));
  }
  Status ok = made->make_plans(library, target);
  if (ok && target.kind != TargetKind::kHost) ok = made->make_tables();
  if (!ok) return tl::unexpected<Error>(ok.error());
  return made;
}

Pieces::~Pieces() {
  if (table_.bytes() > 0) step(PiecesStep::kAmax).plan->release(std::move(table_));
}

// Makes the plans of the steps, and their kernels in parallel.
Status Pieces::make_plans(Library& library, const Target& target) {
  std::vector<Plan::Range> ranges;
  for (const PiecesStep which : kSteps) {
    const auto takes = [&](const Piece& piece) { return takes_part(piece, which); };
    if (which == PiecesStep::kTranspose && std::ranges::none_of(pieces_, takes)) continue;
    auto plan = Plan::create(library, problem_of(common_, which), target);
    if (!plan) return tl::unexpected<Error>(plan.error());
    step(which).plan = std::move(*plan);
    ranges.push_back({step(which).plan.get(), 1, 1});
  }
  return Plan::prepare_all(library, ranges);
}

// Counts the thread blocks of every step, and copies the table of a live device to it.
Status Pieces::make_tables() {
  struct Place {
    Step* step;
    std::size_t rows, first_blocks;
  };
  TableBytes table;
  std::vector<Place> places;
  for (const PiecesStep which : kSteps) {
    Step& one = step(which);
    if (one.plan == nullptr) continue;
    const auto kernels = one.plan->kernels();
    auto blocks = first_blocks(common_, which,
                               config_as<QuantizeProblem>(kernels.front().kernel->config), pieces_);
    if (!blocks) return tl::unexpected<Error>(blocks.error());
    one.first_blocks_on_host = std::move(*blocks);
    // The steps of ranges and of their scales have the same rows.
    std::size_t rows = places.empty() ? 0 : places.front().rows;
    if (places.empty() || which == PiecesStep::kTranspose) {
      std::vector<PieceTableRow> all;
      for (const Piece& piece : pieces_) all.push_back(table_row(common_, which, piece));
      rows = table.add(all);
    }
    places.push_back({&one, rows, table.add(one.first_blocks_on_host)});
  }
  const Plan& plan = *step(PiecesStep::kAmax).plan;
  if (plan.target().kind != TargetKind::kLive) return {};
  auto buffer = plan.to_device(table.bytes().data(), table.bytes().size());
  if (!buffer) return tl::unexpected<Error>(buffer.error());
  table_ = std::move(*buffer);
  const char* const base = static_cast<const char*>(table_.pointer());
  for (const Place& place : places) {
    place.step->rows = reinterpret_cast<const PieceTableRow*>(base + place.rows);
    place.step->first_blocks = reinterpret_cast<const std::uint32_t*>(base + place.first_blocks);
  }
  return {};
}

Status Pieces::check_transposes(std::int64_t first, std::int64_t count) const {
  const auto before = [&](std::int64_t i) {
    return transposes_before_[static_cast<std::size_t>(i)];
  };
  if (before(first + count) - before(first) == count) return {};
  std::int64_t lacks = first;
  while (before(lacks + 1) - before(lacks) == 1) ++lacks;
  return refuse(
      fmt::format("step is OCTILE_PIECES_TRANSPOSE, and pieces[{}].q_transposed is null; "
                  "allowed: pieces that have a transposed copy",
                  lacks));
}

Status Pieces::run(PiecesStep which, std::int64_t first, std::int64_t count,
                   CUstream stream) const {
  const auto all = static_cast<std::int64_t>(pieces_.size());
  if (first < 0 || first > all)
    return refuse(fmt::format("first is {}; allowed: 0 to {}, the number of pieces", first, all));
  if (count < 0 || count > all - first)
    return refuse(
        fmt::format("count is {}; allowed: 0 to {}, the pieces from first on", count, all - first));
  if (which == PiecesStep::kTranspose)
    if (Status ok = check_transposes(first, count); !ok) return ok;
  const Step& one = step(which);
  if (count == 0 || one.plan == nullptr) return {};
  if (one.plan->target().kind == TargetKind::kHost) {
    for (std::int64_t i = first; i < first + count; ++i) {
      if (Status ok = run_on_host(which, pieces_[static_cast<std::size_t>(i)]); !ok) return ok;
    }
    return {};
  }
  const auto block = [&](std::int64_t i) -> std::int64_t {
    return one.first_blocks_on_host[static_cast<std::size_t>(i)];
  };
  PiecesCall call;
  call.blocks = block(first + count) - block(first);
  if (call.blocks == 0) return {};
  call.args.pieces = one.rows + first;
  call.args.first_blocks = one.first_blocks + first;
  call.args.count = count;
  call.args.first_block = block(first);
  return one.plan->run(call, stream);
}

Status Pieces::run_on_host(PiecesStep which, const Piece& piece) const {
  if (!takes_part(piece, which)) return {};
  QuantizeProblem problem = problem_of(common_, which, piece);
  if (which != PiecesStep::kTranspose)
    return reference::quantize_range(problem, {.rows = piece.rows,
                                               .start = piece.start,
                                               .length = piece.length,
                                               .x = piece.x,
                                               .q = piece.q,
                                               .amax = piece.amax,
                                               .scale = piece.scale,
                                               .scale_transposed = piece.scale_transposed});
  problem.pieces = PiecesStep::kNone;
  QuantizeArguments args;
  args.rows = piece.rows;
  args.x = piece.q_gathered;
  args.ldx = piece.cols;
  args.source_scales.x_scale = piece.scale;
  args.q_transposed = piece.q_transposed;
  args.scale_transposed = piece.scale_transposed;
  const auto call = complete(problem, args);
  if (!call) return tl::unexpected<Error>(call.error());
  return octile::run_on_host(problem, *call);
}

}  // namespace octile
