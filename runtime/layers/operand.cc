#include "runtime/layers/operand.h"

#include <fmt/format.h>

#include "generator/quantize/layout.h"
#include "runtime/launch/argument_checks.h"

namespace octile::layers {
namespace {

constexpr std::int64_t kCopyAlign = 16;
constexpr std::int64_t kPartAlign = 4;

// The names of a copy's parts, so that a check that passes formats nothing.
struct CopyNames {
  std::string_view codes, scales;
};
constexpr CopyNames kCopyNames[kRoles][2] = {
    {{"x.rowwise.codes", "x.rowwise.scales"}, {"x.transposed.codes", "x.transposed.scales"}},
    {{"w.rowwise.codes", "w.rowwise.scales"}, {"w.transposed.codes", "w.transposed.scales"}},
    {{"dy.rowwise.codes", "dy.rowwise.scales"}, {"dy.transposed.codes", "dy.transposed.scales"}}};
constexpr std::string_view kTensorNames[kRoles] = {"x", "w", "dy"};
constexpr std::string_view kSourceNames[kRoles] = {"x.source", "w.source", "dy.source"};
constexpr std::string_view kLdNames[kRoles] = {"x.ld", "w.ld", "dy.ld"};

bool is_given(const octile_layer_copy& copy) { return copy.codes != nullptr; }

}  // namespace

std::string_view name_of(Role role) { return kTensorNames[static_cast<int>(role)]; }

bool is_current(const octile_layer_operand& operand) {
  return operand.struct_size != 0 && operand.state == OCTILE_LAYER_CURRENT;
}

bool is_codes(const octile_layer_operand& operand) {
  return operand.struct_size != 0 && operand.state == OCTILE_LAYER_CODES;
}

Operand::Operand(const Description& d, Role which, Copies reads,
                 const octile_layer_operand& from_caller, std::int64_t tokens_of_call)
    : role(which), needed(reads), given(from_caller), tokens(tokens_of_call) {
  if (given.struct_size == 0 || given.state != OCTILE_LAYER_QUANTIZE || rows(d) == 0) return;
  made = {.rowwise = needed.rowwise || is_given(given.rowwise),
          .transposed = needed.transposed || is_given(given.transposed)};
}

Result<QuantizedLayout> copy_layout(const Plans& plans, const Description& d, Role role,
                                    bool transposed, std::int64_t tokens) {
  const Slot& slot = plans.quantizer(role, {!transposed, transposed}, false);
  if (Status ok = slot.check(); !ok) return tl::unexpected<Error>(ok.error());
  const bool is_w = role == Role::kW;
  const std::int64_t groups = is_w && d.experts > 0 ? 1 : d.experts;
  return slot.plan->quantized_layout(is_w ? d.n : tokens, groups, transposed);
}

void* Workspace::take(std::int64_t bytes) {
  char* const at = memory_ == nullptr ? nullptr : memory_ + used_;
  // More than every address space has, where the sum is beyond 2^63 - 1.
  if (bytes > kMost - kAlign || __builtin_add_overflow(used_, round_up(bytes, kAlign), &used_))
    used_ = kMost;
  return at;
}

Status Operand::check_copy(const octile_layer_copy& copy, bool is_transposed) const {
  if (copy.codes == nullptr && copy.scales == nullptr) return {};
  const CopyNames& names = kCopyNames[static_cast<int>(role)][is_transposed ? 1 : 0];
  if (Status ok = check_pointer(names.codes, copy.codes, kCopyAlign); !ok) return ok;
  // Those of some columns begin where the scales of the whole have these.
  const std::int64_t align = given.whole_columns > 0 ? kPartAlign : kCopyAlign;
  return check_pointer(names.scales, copy.scales, align);
}

Status Operand::check_current() const {
  const auto missing = [&](bool is_transposed) {
    return refuse(fmt::format(
        "{} is null; allowed: a pointer, because {} is OCTILE_LAYER_CURRENT "
        "and the call reads this copy",
        kCopyNames[static_cast<int>(role)][is_transposed ? 1 : 0].codes, name_of(role)));
  };
  if (needed.rowwise && !is_given(given.rowwise)) return missing(false);
  if (needed.transposed && !is_given(given.transposed)) return missing(true);
  return check_never_quantized("OCTILE_LAYER_CURRENT");
}

Status Operand::check_never_quantized(std::string_view state) const {
  if (given.skip == nullptr && given.fingerprint == nullptr) return {};
  return refuse(fmt::format("{}.{} is given; allowed: null, because {} is {}", name_of(role),
                            given.skip != nullptr ? "skip" : "fingerprint", name_of(role), state));
}

Status Operand::check_codes(const Description& d) const {
  if (role != Role::kW)
    return refuse(
        fmt::format("{}.state is OCTILE_LAYER_CODES; allowed: OCTILE_LAYER_QUANTIZE and "
                    "OCTILE_LAYER_CURRENT, because only W is held as codes",
                    name_of(role)));
  if (Status ok = check_holdable(d); !ok) return ok;
  if (needed.any() && !is_given(given.rowwise))
    return refuse(
        "w.rowwise.codes is null; allowed: a pointer, because w is OCTILE_LAYER_CODES and this "
        "copy is the weight");
  return check_never_quantized("OCTILE_LAYER_CODES");
}

Status Operand::check_source(const Description& d) {
  const auto index = static_cast<std::size_t>(role);
  const int element = size_of(d.type_of(role));
  const std::int64_t columns = d.columns(role);
  if (Status ok = check_pointer(kSourceNames[index], given.source, element); !ok) return ok;
  if (Status ok = check_ld(kLdNames[index], given.ld, {columns, columns, 1}); !ok) return ok;
  const bool is_w = role == Role::kW;
  return check_size({is_w ? "n" : "tokens", is_w ? d.tensors() * d.n : tokens}, kLdNames[index],
                    given.ld, element);
}

// A copy in the workspace that nobody writes would be read.
Status Operand::check_kept(std::string_view field) const {
  if (role != Role::kW)
    return refuse(
        fmt::format("{}.{} is given; allowed: null, because only W is quantised once "
                    "for several calls",
                    name_of(role), field));
  if ((needed.rowwise && !is_given(given.rowwise)) ||
      (needed.transposed && !is_given(given.transposed)))
    return refuse(
        fmt::format("w.{} is given and w.{}.codes is null; allowed: a pointer, because "
                    "the call reads this copy, which it may skip",
                    field, needed.rowwise ? "rowwise" : "transposed"));
  return {};
}

Status Operand::check_skip() const {
  if (given.skip == nullptr) return {};
  if (Status ok = check_kept("skip"); !ok) return ok;
  return check_pointer("w.skip", given.skip, 4);
}

Status Operand::check_fingerprint() const {
  if (given.fingerprint == nullptr) return {};
  if (given.skip != nullptr)
    return refuse(fmt::format(
        "{}.skip and {}.fingerprint are given; allowed: one of them, because a comparison finds "
        "out itself if there is nothing to do",
        name_of(role), name_of(role)));
  if (Status ok = check_kept("fingerprint"); !ok) return ok;
  return check_pointer("w.fingerprint", given.fingerprint, 8);
}

Status Operand::check_scale_stride(const Description& d) {
  const TensorType& type = d.recipe->weight;
  const bool read_rowwise = is_codes(given) || (is_current(given) && !needed.transposed);
  if (role == Role::kW && read_rowwise && type.granularity == Granularity::k128x128)
    return check_scale_ld("w.scale_ld", given.scale_ld, type, d.n, d.k);
  return refuse(
      fmt::format("{}.scale_ld is {}; allowed: 0, because only 128x128 scales of a W that is "
                  "OCTILE_LAYER_CODES, or OCTILE_LAYER_CURRENT in octile_layer_forward, may lie "
                  "otherwise",
                  name_of(role), given.scale_ld));
}

Status Operand::check_whole(const Description& d) const {
  if (role != Role::kDy || !is_current(given) || d.experts > 0)
    return refuse(
        fmt::format("{}.whole_columns is {}; allowed: 0, because only a dY that is "
                    "OCTILE_LAYER_CURRENT, of no experts, may be a part of another matrix",
                    name_of(role), given.whole_columns));
  std::int64_t whole = given.whole_columns;
  return check_ld("dy.whole_columns", whole, {d.n, d.n, kMultiple});
}

Status Operand::check(const Description& d) {
  if (given.struct_size == 0) {
    if (!needed.any()) return {};
    return refuse(
        fmt::format("{} is null; allowed: a pointer to an octile_layer_operand", name_of(role)));
  }
  if (Status ok = check_copy(given.rowwise, false); !ok) return ok;
  if (Status ok = check_copy(given.transposed, true); !ok) return ok;
  if (given.scale_ld != 0) {
    if (Status ok = check_scale_stride(d); !ok) return ok;
  }
  if (given.whole_columns != 0) {
    if (Status ok = check_whole(d); !ok) return ok;
  }
  if (is_current(given)) return check_current();
  if (is_codes(given)) return check_codes(d);
  if (!made.any()) return {};
  if (Status ok = check_source(d); !ok) return ok;
  if (Status ok = check_skip(); !ok) return ok;
  return check_fingerprint();
}

Status Operand::place_copy(const Plans& plans, const Description& d, bool is_transposed,
                           Workspace& workspace) {
  const auto layout = copy_layout(plans, d, role, is_transposed, tokens);
  if (!layout) return tl::unexpected<Error>(layout.error());
  code_bytes[is_transposed ? 1 : 0] = layout->data.bytes();
  scale_bytes[is_transposed ? 1 : 0] = layout->scales.bytes();
  const octile_layer_copy& memory = is_transposed ? given.transposed : given.rowwise;
  octile_layer_copy& copy = is_transposed ? transposed : rowwise;
  if (is_given(memory)) {
    copy = memory;
    return {};
  }
  const std::int64_t tensors = role == Role::kW ? d.tensors() : 1;
  copy.codes = workspace.take(tensors * layout->data.bytes());
  copy.scales = workspace.take(tensors * layout->scales.bytes());
  return {};
}

Status Operand::place(const Plans& plans, const Description& d, Workspace& workspace) {
  if (needed.rowwise || made.rowwise || transposes()) {
    if (Status ok = place_copy(plans, d, false, workspace); !ok) return ok;
  }
  if (!needed.transposed && !made.transposed) return {};
  return place_copy(plans, d, true, workspace);
}

}  // namespace octile::layers
