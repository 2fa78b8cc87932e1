#include "tools/bench/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "generator/core/layout.h"
#include "octile/pieces.h"
#include "runtime/api/boundary.h"
#include "runtime/families/quantize/complete.h"
#include "tools/bench/yardsticks.h"
#include "tools/models/layout.h"

namespace octile::tools {
namespace {

struct PiecesDelete {
  void operator()(octile_pieces* pieces) const { octile_pieces_destroy(pieces); }
};
using PiecesHandle = std::unique_ptr<octile_pieces, PiecesDelete>;

// Every byte of x. Values of one magnitude have codes that one element tells.
constexpr std::uint8_t kFill = 0x3c;
constexpr std::int64_t kMostCompared = std::int64_t{1} << 20;

Status status_of_call(octile_status status) {
  if (status == OCTILE_OK) return {};
  return fail(static_cast<ErrorCode>(status), octile_last_error());
}

// The bytes that a step reads and writes, those of the scales included.
struct Traffic {
  std::int64_t read = 0, written = 0;
};

std::int64_t blocks_of(const QuantizeProblem& common, const Piece& piece) {
  const auto layout = quantized_layout(common.q, piece.rows, piece.cols);
  return layout ? layout->scale_rows * layout->scale_cols : 0;
}

Traffic traffic_of(const QuantizeProblem& common, PiecesStep step, const RankPieces& rank) {
  std::int64_t blocks = 0;
  for (const Piece& piece : rank.pieces) blocks += blocks_of(common, piece);
  const std::int64_t x = size_of(common.x.dtype);
  switch (step) {
    case PiecesStep::kAmax:
      return {rank.held * x, 0};
    case PiecesStep::kScales:
      return {blocks * 4, blocks * 8};
    case PiecesStep::kCast:
      return {rank.held * x, rank.held};
    case PiecesStep::kTranspose:
      return {rank.elements, rank.elements};
    case PiecesStep::kNone:
      break;
  }
  return {};
}

// Device memory of one rank, and the pieces that point into it.
class RankMemory {
 public:
  static Result<RankMemory> create(const GpuSession& gpu, const QuantizeProblem& common,
                                   const RankPieces& rank) {
    RankMemory memory;
    memory.pieces_ = rank.pieces;
    memory.place(common);
    for (std::size_t i = 0; i < kArrays; ++i) {
      auto buffer = gpu.allocate(static_cast<std::size_t>(memory.bytes_[i]));
      if (!buffer) return tl::unexpected<Error>(buffer.error());
      const std::uint8_t value = i == kX ? kFill : 0;
      if (Status ok = buffer->fill(value, gpu.stream()); !ok)
        return tl::unexpected<Error>(ok.error());
      memory.arrays_[i] = std::move(*buffer);
    }
    memory.point();
    return memory;
  }

  const std::vector<octile_piece>& pieces() const { return public_; }
  const DeviceBuffer& maxima() const { return arrays_[kAmax]; }
  // Returns the codes of the rank's first range that has any.
  Result<std::vector<std::uint8_t>> first_codes(const GpuSession& gpu) const {
    const auto first =
        std::ranges::find_if(pieces_, [](const Piece& piece) { return piece.length > 0; });
    const auto index = static_cast<std::size_t>(first - pieces_.begin());
    std::vector<std::uint8_t> codes(
        static_cast<std::size_t>(std::min(first->length, kMostCompared)));
    const auto offset = static_cast<std::size_t>(offsets_[index][kQ] + first->start);
    Status ok = arrays_[kQ].download(codes.data(), codes.size(), gpu.stream(), offset);
    if (ok) ok = gpu.synchronize();
    if (!ok) return tl::unexpected<Error>(ok.error());
    return codes;
  }

 private:
  enum Array : std::size_t { kX, kQ, kAmax, kScale, kScaleTransposed, kQTransposed, kArrays };

  void place(const QuantizeProblem& common) {
    TensorType maxima = common.q;
    maxima.scale = default_scale_format(maxima.granularity);
    for (const Piece& p : pieces_) {
      const auto row = quantized_layout(common.q, p.rows, p.cols, p.cols);
      const auto col = quantized_layout(common.q, p.rows, p.cols, 0, true);
      const auto amax = quantized_layout(maxima, p.rows, p.cols);
      const std::array<std::int64_t, kArrays> sizes{p.length * size_of(common.x.dtype),
                                                    p.rows * p.cols,
                                                    amax->scales.outer * amax->scales.ld * 4,
                                                    row->scales.bytes(),
                                                    col->scales.bytes(),
                                                    col->data.bytes()};
      offsets_.emplace_back();
      for (std::size_t i = 0; i < kArrays; ++i) {
        offsets_.back()[i] = bytes_[i];
        bytes_[i] += round_up(sizes[i], 16);
      }
    }
  }
  void point() {
    for (std::size_t w = 0; w < pieces_.size(); ++w) {
      const auto at = [&](Array array, std::int64_t bytes) {
        return static_cast<char*>(arrays_[array].pointer()) + offsets_[w][array] + bytes;
      };
      const Piece& p = pieces_[w];
      octile_piece one{};
      one.struct_size = sizeof one;
      one.rows = p.rows;
      one.cols = p.cols;
      one.start = p.start;
      one.length = p.length;
      one.x = at(kX, 0);
      one.q = at(kQ, p.start);
      one.amax = reinterpret_cast<float*>(at(kAmax, 0));
      one.scale = at(kScale, 0);
      one.scale_transposed = at(kScaleTransposed, 0);
      one.q_gathered = at(kQ, 0);
      one.q_transposed = at(kQTransposed, 0);
      public_.push_back(one);
    }
  }

  std::vector<Piece> pieces_;
  std::vector<std::array<std::int64_t, kArrays>> offsets_;
  std::array<std::int64_t, kArrays> bytes_{};
  std::array<DeviceBuffer, kArrays> arrays_;
  std::vector<octile_piece> public_;
};

Result<PiecesHandle> make_pieces(const BenchContext& context, const QuantizeProblem& common,
                                 const RankMemory& memory) {
  octile_pieces_desc desc{};
  desc.struct_size = sizeof desc;
  desc.x_dtype = static_cast<octile_dtype>(common.x.dtype);
  if (common.via) desc.via_dtype = static_cast<octile_dtype>(*common.via);
  desc.q_dtype = static_cast<octile_dtype>(common.q.dtype);
  desc.granularity = static_cast<octile_granularity>(common.q.granularity);
  desc.scale_format = static_cast<octile_scale_format>(common.q.scale);
  octile_pieces* made = nullptr;
  const Status ok = status_of_call(octile_pieces_create(
      context.library.get(), context.gpu.device().c_str(), &desc, memory.pieces().data(),
      static_cast<std::int64_t>(memory.pieces().size()), &made));
  if (!ok) return tl::unexpected<Error>(ok.error());
  return PiecesHandle(made);
}

// Returns the code that every element of a block of equal values has.
Result<std::uint8_t> code_of_fill(const QuantizeProblem& common) {
  const std::uint32_t bits = kFill * 0x01010101U;  // of one element of any type
  std::uint8_t code = 0;
  QuantizeProblem one = common;
  one.cols = 1;
  std::array<float, 4> scales{};
  QuantizeArguments args;
  args.rows = 1;
  args.x = &bits;
  args.q = &code;
  args.scale = scales.data();
  const auto call = complete(one, args);
  if (!call) return tl::unexpected<Error>(call.error());
  if (Status ok = run_on_host(one, *call); !ok) return tl::unexpected<Error>(ok.error());
  return code;
}

Status check_codes(const BenchContext& context, const QuantizeProblem& common,
                   const RankMemory& memory, Record& record) {
  const auto code = code_of_fill(common);
  if (!code) return tl::unexpected<Error>(code.error());
  const auto codes = memory.first_codes(context.gpu);
  if (!codes) return tl::unexpected<Error>(codes.error());
  record.ok = std::ranges::all_of(*codes, [&](std::uint8_t c) { return c == *code; });
  record.check = fmt::format("the first {} codes {} the host reference's", codes->size(),
                             record.ok ? "equal" : "DIFFER from");
  return {};
}

// A stream of a step's bytes. The buffers are those of all steps.
struct StepStream {
  StreamKernel kernel;
  std::int64_t units = 0;
};

// Nothing for a step that writes next to nothing and reads next to nothing. A stream writes at
// least a sixteenth of the bytes it reads.
Result<std::optional<StepStream>> stream_of(const BenchContext& context,
                                            const QuantizeProblem& common, PiecesStep step,
                                            const Traffic& traffic) {
  if (step == PiecesStep::kScales) return std::nullopt;
  const int reads = step == PiecesStep::kAmax        ? 16
                    : step == PiecesStep::kTranspose ? 1
                                                     : size_of(common.x.dtype);
  auto kernel = StreamKernel::create(context.templates, reads, 1, 1);
  if (!kernel) return tl::unexpected<Error>(kernel.error());
  return StepStream{std::move(*kernel), (traffic.read + traffic.written) / (reads + 1)};
}

struct TimedStep {
  PiecesStep step;
  const char* name;
  Traffic traffic;
  std::optional<StepStream> stream;
};

Result<std::vector<TimedStep>> steps_of(const BenchContext& context, const QuantizeProblem& common,
                                        const RankPieces& rank) {
  std::vector<TimedStep> steps{{PiecesStep::kAmax, "amax", {}, {}},
                               {PiecesStep::kScales, "scales", {}, {}},
                               {PiecesStep::kCast, "cast", {}, {}},
                               {PiecesStep::kTranspose, "transpose", {}, {}}};
  for (TimedStep& one : steps) {
    one.traffic = traffic_of(common, one.step, rank);
    auto stream = stream_of(context, common, one.step, one.traffic);
    if (!stream) return tl::unexpected<Error>(stream.error());
    one.stream = std::move(*stream);
  }
  return steps;
}

}  // namespace

std::string_view name_of(RankCut cut) { return cut == RankCut::kRows ? "rows" : "flat"; }

Result<RankPieces> pieces_of(const Model& model, const std::string& name, std::int64_t layers,
                             std::int64_t ranks, RankCut cut) {
  constexpr std::int64_t kMost = 4096;
  for (const auto& [option, count] : {std::pair("--layers", layers), std::pair("--ranks", ranks)}) {
    if (count >= 1 && count <= kMost) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}; allowed: 1 to {}", option, count, kMost));
  }
  RankPieces rank;
  rank.what =
      fmt::format("pieces model={} layers={} ranks={} cut={}", name, layers, ranks, name_of(cut));
  const std::vector<Weight> weights = laid_out(model, Layout::kServing).weights;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const Weight& weight : weights) {
      if (weight.is_vector() || !weight.out.empty() || weight.groups > 0) continue;
      rank.pieces.push_back({weight.n.value, weight.k.value});
      rank.elements += weight.n.value * weight.k.value;
    }
  }
  const std::int64_t middle = ranks / 2;
  std::int64_t before = 0;
  for (Piece& piece : rank.pieces) {
    const std::int64_t elements = piece.rows * piece.cols;
    std::int64_t begin = 0, end = 0;
    if (cut == RankCut::kRows) {
      const std::int64_t rows = ceil_div(piece.rows, ranks);
      begin = std::min(middle * rows, piece.rows) * piece.cols;
      end = std::min((middle + 1) * rows, piece.rows) * piece.cols;
    } else {
      const std::int64_t share = round_up(ceil_div(rank.elements, ranks), 128);
      begin = std::clamp<std::int64_t>(middle * share - before, 0, elements);
      end = std::clamp<std::int64_t>((middle + 1) * share - before, 0, elements);
    }
    piece.start = begin;
    piece.length = end - begin;
    rank.held += piece.length;
    before += elements;
  }
  return rank;
}

Result<std::vector<Record>> bench_pieces(const BenchContext& context, const QuantizeProblem& common,
                                         const RankPieces& rank) {
  const auto memory = RankMemory::create(context.gpu, common, rank);
  if (!memory) return tl::unexpected<Error>(memory.error());
  const auto pieces = make_pieces(context, common, *memory);
  if (!pieces) return tl::unexpected<Error>(pieces.error());
  const auto steps = steps_of(context, common, rank);
  if (!steps) return tl::unexpected<Error>(steps.error());
  const auto run = [&](PiecesStep step, CUstream stream) {
    return status_of_call(octile_pieces_run(pieces->get(), static_cast<octile_pieces_step>(step), 0,
                                            static_cast<std::int64_t>(rank.pieces.size()), stream));
  };
  Record blank = new_record(context.tool, context.gpu);
  blank.what = fmt::format("{} x={} q={}{}", rank.what, to_text(common.x), to_text(common.q),
                           common.via ? " via=bf16" : "");
  blank.unit = "us";
  blank.details.set("pieces", rank.pieces.size());
  for (const TimedStep& one : *steps) {
    if (Status ok = run(one.step, context.gpu.stream()); !ok)
      return tl::unexpected<Error>(ok.error());
  }
  if (Status ok = check_codes(context, common, *memory, blank); !ok)
    return tl::unexpected<Error>(ok.error());

  std::size_t in_bytes = 0, out_bytes = 0;
  for (const TimedStep& one : *steps) {
    if (!one.stream) continue;
    in_bytes = std::max(in_bytes, one.stream->kernel.in_bytes(one.stream->units));
    out_bytes = std::max(out_bytes, one.stream->kernel.out_bytes(one.stream->units));
  }
  auto in = context.gpu.allocate(in_bytes);
  if (!in) return tl::unexpected<Error>(in.error());
  auto out = context.gpu.allocate(out_bytes);
  if (!out) return tl::unexpected<Error>(out.error());
  if (Status ok = in->fill(kFill, context.gpu.stream()); !ok)
    return tl::unexpected<Error>(ok.error());

  std::vector<Record> records;
  for (const TimedStep& one : *steps) {
    std::vector<Contender> contenders{
        {"octile", [&](int, CUstream stream) { return run(one.step, stream); }}};
    if (one.stream) {
      contenders.push_back({"stream", [&](int, CUstream stream) {
                              return one.stream->kernel.run(*in, *out, one.stream->units, stream);
                            }});
    }
    Record record = blank;
    record.part = one.name;
    record.details.set("bytes", one.traffic.read + one.traffic.written);
    if (Status ok = compare(context, contenders, "", record); !ok)
      return tl::unexpected<Error>(ok.error());
    records.push_back(std::move(record));
  }
  return records;
}

}  // namespace octile::tools
