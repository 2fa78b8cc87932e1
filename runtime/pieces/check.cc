// The rules of a piece.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "generator/core/layout.h"
#include "runtime/launch/argument_checks.h"
#include "runtime/pieces/pieces.h"

namespace octile {
namespace {

// Checks the fields of one piece; a refusal names the field.
class PieceCheck {
 public:
  PieceCheck(const QuantizeProblem& common, const Piece& piece) : common_(common), piece_(piece) {}

  Status run() const {
    Status ok = check_extent("rows", piece_.rows);
    if (ok) ok = check_extent("cols", piece_.cols);
    if (ok) ok = check_range();
    if (ok) ok = check_arrays_of_range();
    if (ok) ok = check_arrays_of_weight();
    if (ok) ok = check_transposed();
    return ok;
  }

 private:
  Status check_range() const {
    const std::int64_t elements = piece_.rows * piece_.cols;  // both of 31 bits
    if (piece_.start < 0 || piece_.start > elements)
      return refuse(
          fmt::format("start is {}; allowed: 0 to rows * cols = {}", piece_.start, elements));
    const std::int64_t most = elements - piece_.start;
    if (piece_.length >= 0 && piece_.length <= most) return {};
    return refuse(
        fmt::format("length is {}; allowed: 0 to {}, where the weight ends", piece_.length, most));
  }

  Status check_arrays_of_range() const {
    if (piece_.length == 0) return {};
    if (Status ok = check_pointer("x", piece_.x, size_of(common_.x.dtype)); !ok) return ok;
    return check_pointer("q", piece_.q, 1);
  }

  Status check_arrays_of_weight() const {
    if (piece_.rows == 0 || piece_.cols == 0) return {};
    if (Status ok = check_pointer("amax", piece_.amax, sizeof(float)); !ok) return ok;
    if (Status ok = check_pointer("scale", piece_.scale, scale_alignment(common_.q)); !ok)
      return ok;
    if (piece_.scale_transposed == nullptr) return {};
    return check_pointer("scale_transposed", piece_.scale_transposed, scale_alignment(common_.q));
  }

  Status check_transposed() const {
    if (piece_.q_transposed == nullptr && piece_.q_gathered == nullptr) return {};
    if (piece_.q_gathered == nullptr)
      return refuse(
          "q_gathered is null; allowed: the codes of the whole weight, because "
          "q_transposed is given");
    if (piece_.q_transposed == nullptr)
      return refuse(
          "q_transposed is null; allowed: the transposed copy, because q_gathered is "
          "given");
    if (piece_.scale_transposed != nullptr) return {};
    return refuse(
        "scale_transposed is null; allowed: the transposed copy's scales, because "
        "q_transposed is given");
  }

  const QuantizeProblem& common_;
  const Piece& piece_;
};

}  // namespace

Status check_piece(const QuantizeProblem& common, const Piece& piece, std::int64_t index) {
  Status ok = PieceCheck(common, piece).run();
  if (ok) return ok;
  return fail(ok.error().code, fmt::format("pieces[{}].{}", index, ok.error().message));
}

}  // namespace octile
