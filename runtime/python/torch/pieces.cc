#include "pieces.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "fork.h"
#include "layer_handles.h"
#include "octile/pieces.h"
#include "plans.h"
#include "streams.h"
#include "types.h"

namespace octile::binding {
namespace {

enum Buffer : std::uint8_t { kCodes, kAmax, kScales, kGathered, kTransposed, kTransposedScales };
constexpr std::array kBufferNames{"codes",    "amax",       "scales",
                                  "gathered", "transposed", "transposed_scales"};
constexpr std::size_t kWithoutTranspose = 3, kWithTranspose = 6;

bool holds_floats(std::size_t buffer) {
  return buffer == kAmax || buffer == kScales || buffer == kTransposedScales;
}

// A row of the table: the sizes of a weight, and where its piece is.
struct Row {
  std::int64_t rows, cols, start;
  std::span<const std::int64_t> at;  // in each buffer
};

class Pieces {
 public:
  Pieces(std::vector<Tensor> x, std::vector<Tensor> buffers, const Tensor& table,
         const octile_tensor_type& type, bool via_bf16);
  ~Pieces();
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  const Place& place() const { return place_; }
  bool has_buffers(const std::vector<Tensor>& buffers) const;
  void run(octile_pieces_step step, std::int64_t first, std::int64_t count, void* stream) const {
    check(octile_pieces_run(handle_, step, first, count, stream));
  }

 private:
  octile_piece piece_of(std::size_t i, const Row& row, const octile_tensor_type& type) const;
  // Returns where the elements of a piece are in a buffer. Throws std::invalid_argument if the
  // buffer ends before them.
  void* within(Buffer buffer, const Row& row, std::int64_t elements) const;

  std::vector<Tensor> x_, buffers_;
  Place place_;
  octile_pieces* handle_ = nullptr;
};

struct PiecesRegistry {
  std::int64_t last_token = 0;
  std::unordered_map<std::int64_t, std::shared_ptr<Pieces>> by_token;
};
// Guarded by ProcessWide::kPieces. Never destroyed: work may be in flight at exit.
PiecesRegistry& registry = *new PiecesRegistry;
// A child of fork may not use its parent's handles, and leaves them as they are.
const InChild kForgetsPieces([] { new PiecesRegistry(std::exchange(registry, {})); });

std::shared_ptr<Pieces> find(std::int64_t token) {
  const std::scoped_lock lock(process_mutex(ProcessWide::kPieces));
  const auto found = registry.by_token.find(token);
  return found == registry.by_token.end() ? nullptr : found->second;
}

void check_buffer(const Tensor& buffer, std::size_t which, const Place& place) {
  const std::string name = kBufferNames[which];
  check_same_place(buffer, place, name);
  const bool floats = holds_floats(which);
  if (type_of(buffer) != (floats ? torch_type(OCTILE_FP32) : torch_uint8()) ||
      !buffer.is_contiguous()) {
    refuse(name + " " + shape_text(buffer) + " is not contiguous " + (floats ? "fp32" : "uint8"));
  }
}

void check_table(const Tensor& table, std::size_t pieces, std::size_t buffers) {
  const auto rows = static_cast<std::int64_t>(pieces);
  const auto columns = static_cast<std::int64_t>(3 + buffers);
  const bool fits = place_of(table).host && table.dim() == 2 && table.size(0) == rows &&
                    table.size(1) == columns && table.is_contiguous() && table.element_size() == 8;
  if (!fits) {
    refuse("table is " + shape_text(table) + "; allowed is contiguous int64 [" +
           std::to_string(rows) + ", " + std::to_string(columns) + "] on the host");
  }
}

Pieces::Pieces(std::vector<Tensor> x, std::vector<Tensor> buffers, const Tensor& table,
               const octile_tensor_type& type, bool via_bf16)
    : x_(std::move(x)), buffers_(std::move(buffers)), place_(place_of(buffers_.front())) {
  for (std::size_t i = 0; i < buffers_.size(); ++i) check_buffer(buffers_[i], i, place_);
  check_table(table, x_.size(), buffers_.size());
  octile_pieces_desc desc{};
  desc.struct_size = sizeof desc;
  desc.x_dtype = float_type(x_.front(), "x");
  desc.via_dtype = via_bf16 ? OCTILE_BF16 : octile_dtype{};
  desc.q_dtype = type.dtype;
  desc.granularity = type.granularity;
  desc.scale_format = type.scale_format;
  const std::size_t columns = 3 + buffers_.size();
  const std::span all(static_cast<const std::int64_t*>(table.data_ptr()), columns * x_.size());
  std::vector<octile_piece> pieces;
  for (std::size_t i = 0; i < x_.size(); ++i) {
    const auto row = all.subspan(i * columns, columns);
    pieces.push_back(piece_of(i, {row[0], row[1], row[2], row.subspan(3)}, type));
    if (float_type(x_[i], "x") != desc.x_dtype) refuse("x has tensors of several types");
  }
  check(octile_pieces_create(library(), device_name(device_of(place_)).c_str(), &desc,
                             pieces.data(), static_cast<std::int64_t>(pieces.size()), &handle_));
}

// Launches in flight read the library's table, and the memory of PyTorch's tensors.
Pieces::~Pieces() {
  try {
    const OnDevice device(place_);
    float word = 0;
    const Tensor& amax = buffers_[kAmax];
    if (amax.numel() > 0) read_memory(place_, &word, amax.data_ptr(), sizeof word);
    octile_pieces_destroy(handle_);
  } catch (...) {  // A driver that has failed frees nothing.
  }
}

void* Pieces::within(Buffer buffer, const Row& row, std::int64_t elements) const {
  const Tensor& memory = buffers_[buffer];
  const std::int64_t at = row.at[buffer];
  if (at < 0 || at > memory.numel() || elements > memory.numel() - at) {
    refuse(std::string(kBufferNames[buffer]) + " has " + std::to_string(memory.numel()) +
           " elements; allowed are at least " + std::to_string(at) + " + " +
           std::to_string(elements) + ", by the table");
  }
  return static_cast<char*>(memory.data_ptr()) + at * (holds_floats(buffer) ? 4 : 1);
}

octile_piece Pieces::piece_of(std::size_t i, const Row& row, const octile_tensor_type& type) const {
  const Tensor& x = x_[i];
  const std::string name = "x[" + std::to_string(i) + "]";
  check_same_place(x, place_, name);
  if (!x.is_contiguous()) refuse(name + " is not contiguous");
  const auto layout = layout_of(type, row.rows, row.cols, false);
  octile_piece piece{};
  piece.struct_size = sizeof piece;
  piece.rows = row.rows;
  piece.cols = row.cols;
  piece.start = row.start;
  piece.length = x.numel();
  piece.x = x.data_ptr();
  piece.q = within(kCodes, row, piece.length);
  piece.amax = static_cast<float*>(within(kAmax, row, layout.scale_bytes / 4));
  piece.scale = within(kScales, row, layout.scale_bytes / 4);
  if (buffers_.size() == kWithTranspose) {
    const auto transposed = layout_of(type, row.rows, row.cols, true);
    piece.q_gathered = within(kGathered, row, row.rows * row.cols);
    piece.q_transposed = within(kTransposed, row, transposed.data_bytes);
    piece.scale_transposed = within(kTransposedScales, row, transposed.scale_bytes / 4);
  }
  return piece;
}

bool Pieces::has_buffers(const std::vector<Tensor>& buffers) const {
  return std::ranges::equal(buffers, buffers_, [](const Tensor& a, const Tensor& b) {
    return a.data_ptr() == b.data_ptr() && a.numel() == b.numel();
  });
}

}  // namespace

std::int64_t make_pieces(std::vector<Tensor> x, std::vector<Tensor> buffers, Tensor table,
                         std::string type, bool via_bf16) {
  if (x.empty()) refuse("x has no tensors; allowed: 1 and more");
  if (buffers.size() != kWithoutTranspose && buffers.size() != kWithTranspose) {
    refuse("buffers has " + std::to_string(buffers.size()) + " tensors; allowed: 3 and 6");
  }
  const octile_tensor_type of = type_named(type, "type");
  if (scale_bytes(of.scale_format) != sizeof(float)) {
    refuse("type is '" + type + "'; allowed are types with fp32 scales");
  }
  const OnDevice device(place_of(buffers.front()));
  auto made = std::make_shared<Pieces>(std::move(x), std::move(buffers), table, of, via_bf16);
  const std::scoped_lock lock(process_mutex(ProcessWide::kPieces));
  registry.by_token.emplace(++registry.last_token, std::move(made));
  return registry.last_token;
}

void run_pieces(std::vector<Tensor> buffers, std::int64_t token, std::int64_t step,
                std::int64_t first, std::int64_t count) {
  const auto pieces = find(token);
  if (!pieces) refuse("token is " + std::to_string(token) + "; allowed is one of make_pieces");
  if (!pieces->has_buffers(buffers)) refuse("buffers are others than those of the pieces");
  const Place place = place_of(buffers.front());
  const OnDevice device(place);
  pieces->run(static_cast<octile_pieces_step>(step), first, count, place.stream);
}

void forget_pieces(std::int64_t token) {
  std::shared_ptr<Pieces> gone;  // destroyed without the lock
  const std::scoped_lock lock(process_mutex(ProcessWide::kPieces));
  const auto found = registry.by_token.find(token);
  if (found == registry.by_token.end()) return;
  gone = std::move(found->second);
  registry.by_token.erase(found);
}

}  // namespace octile::binding
