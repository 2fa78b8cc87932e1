#include "runtime/layers/weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "runtime/launch/argument_checks.h"
#include "runtime/launch/device_scope.h"
#include "runtime/layers/operand.h"
#include "runtime/layers/uses.h"

namespace octile::layers {
namespace {

constexpr std::uint32_t kPasses = OCTILE_LAYER_WITHOUT_FORWARD | OCTILE_LAYER_WITHOUT_BACKWARD;
constexpr std::size_t kWords = 3;  // row-wise, transposed, both

bool is_forward(const octile_weight_call& call) {
  return !has_use(call.uses, OCTILE_LAYER_WITHOUT_FORWARD);
}

// Returns whether a backward pass follows.
bool trains(const octile_weight_call& call) {
  return has_use(call.uses, OCTILE_LAYER_KEEP_X) ||
         has_use(call.uses, OCTILE_LAYER_INPUT_GRADIENT) ||
         has_use(call.uses, OCTILE_LAYER_WEIGHT_GRADIENT);
}

Moment moment_of(const octile_weight_call& call) { return {call.stamp, call.epoch, call.capture}; }

bool same(const octile_layer_copy& a, const octile_layer_copy& b) {
  return a.codes == b.codes && a.scales == b.scales;
}

// Returns the copies that outlast a pass and that it, or the backward pass behind it, reads.
Copies kept_of(const octile_weight_call& call, Copies memory) {
  if (!is_forward(call)) return {.transposed = memory.transposed};
  if (!memory.rowwise) return {};
  return {.rowwise = true,
          .transposed = memory.transposed && has_use(call.uses, OCTILE_LAYER_INPUT_GRADIENT)};
}

// The word says of a set of copies if all of them are current. A quantiser that writes both may be
// skipped by the last alone.
std::size_t word_of(Copies copies) {
  return copies.rowwise && copies.transposed ? 2 : copies.transposed ? 1 : 0;
}

// Completes the operand of a pass.
void complete(octile_layer_operand& operand, Copies copies, bool compares,
              const std::uint32_t* skip, octile_layer_state state) {
  operand.state = state;
  if (!copies.rowwise) operand.rowwise = {};
  if (!copies.transposed) operand.transposed = {};
  if (!compares) operand.fingerprint = nullptr;
  operand.skip = skip;
}

}  // namespace

void CachedWeight::State::follow_trust(bool now_trusted) {
  if (trusted == now_trusted) return;
  trusted = now_trusted;
  made.reset();
  current = {};
  if (!captured) {
    covered = {};
  } else if (!captured_comparison.any()) {
    never_compares = true;  // replays that obey words would overtake comparisons
  }
}

// Copies in other memory are unknown, and not those that the fingerprint describes.
void CachedWeight::State::follow_memory(const octile_layer_operand& operand) {
  const auto follow = [&](octile_layer_copy& known, const octile_layer_copy& given,
                          bool& is_current) {
    if (same(known, given)) return;
    known = given;
    is_current = false;
    covered = {};
  };
  follow(memory[0], operand.rowwise, current.rowwise);
  follow(memory[1], operand.transposed, current.transposed);
}

void CachedWeight::State::note_forward(bool changed) {
  if (changed) {
    used_once = forwards == 1;
    forwards = 0;
  }
  ++forwards;
}

bool CachedWeight::State::compares(const octile_weight_call& call, bool has_fingerprint,
                                   bool changed) const {
  if (!has_fingerprint || never_compares) return false;
  if (call.capture != 0) return !trains(call);
  return !(changed && used_once);
}

// Returns the word by which a pass learns on the device that it has nothing to make, or null if it
// always has.
const std::uint32_t* CachedWeight::State::skip_of(const octile_weight_call& call,
                                                  Copies making) const {
  if (call.words == nullptr || (captured && !made)) return nullptr;
  if (call.capture == 0 && call.replayed == 0) return nullptr;
  // Written where no word was cleared.
  if (made && call.epoch == made->epoch && call.stamp != made->stamp) return nullptr;
  return call.words + word_of(making);
}

CachedWeight::Decision CachedWeight::State::decide_trusted(const octile_weight_call& call,
                                                           Copies kept) {
  const bool unsure = call.words != nullptr && call.capture == 0 && call.replayed != 0;
  const bool stale = made != moment_of(call) || unsure;
  Decision decision{.kept = kept};
  decision.making = stale ? kept
                          : Copies{.rowwise = kept.rowwise && !current.rowwise,
                                   .transposed = kept.transposed && !current.transposed};
  if (!decision.making.any()) return decision;
  // No forward pass makes W^T alone.
  if (is_forward(call)) decision.making.rowwise = true;
  decision.skip = skip_of(call, decision.making);
  if (stale) current = {};
  return decision;
}

CachedWeight::Decision CachedWeight::State::decide_untrusted(const octile_weight_call& call,
                                                             Copies kept, bool has_fingerprint) {
  const Moment now = moment_of(call);
  if (!is_forward(call)) {
    const bool is_made = made == now && (kept & current) == kept;
    return {.kept = kept, .making = is_made ? Copies{} : kept};
  }
  const bool changed = !made || now.stamp != made->stamp || now.epoch != made->epoch;
  note_forward(changed);
  Decision decision{.kept = kept, .making = kept};
  // Those that replays compare are compared together, or not at all.
  const bool whole = (captured_comparison & memory_given()) == captured_comparison;
  decision.compares = whole && compares(call, has_fingerprint, changed);
  if (decision.compares) {
    if (!changed) decision.making = decision.making | current;
    if (captured_comparison.any()) decision.making = captured_comparison;
    if (now.capture != 0) captured_comparison = decision.making;
    // A copy outside the captured set is made by each pass that reads it.
    decision.kept = kept & decision.making;
  }
  current = {};
  return decision;
}

CachedWeight::Decision CachedWeight::State::decide(const octile_weight_call& call,
                                                   const octile_layer_operand& operand) {
  follow_trust(call.trusted != 0);
  follow_memory(operand);
  const Copies kept = kept_of(call, memory_given());
  if (!kept.any()) return {};
  const bool has_fingerprint = operand.fingerprint != nullptr;
  Decision decision =
      trusted ? decide_trusted(call, kept) : decide_untrusted(call, kept, has_fingerprint);
  if (!has_fingerprint || !decision.making.any()) return decision;
  // A replay comes behind every comparison since the capture.
  const bool overlaps =
      (decision.making & (covered | captured_comparison)).any() || (call.capture != 0 && !trusted);
  decision.forgets = decision.compares ? decision.making != covered : overlaps;
  if (decision.compares || decision.forgets)
    covered = decision.compares ? decision.making : Copies{};
  return decision;
}

Status CachedWeight::check(const octile_weight_call& call,
                           const octile_layer_operand& operand) const {
  const std::uint32_t passes = call.uses & kPasses;
  if (passes == 0 || passes == kPasses)
    return refuse(
        fmt::format("call->uses is {}; allowed: one of WITHOUT_BACKWARD and "
                    "WITHOUT_FORWARD, for one pass",
                    text_of_uses(call.uses)));
  if (Status ok = check_uses(layer_->description(), call.uses); !ok) return ok;
  if (operand.state != OCTILE_LAYER_QUANTIZE)
    return refuse(
        fmt::format("operand.state is {}; allowed: OCTILE_LAYER_QUANTIZE (0), which "
                    "octile_weight_begin completes",
                    static_cast<int>(operand.state)));
  if (operand.skip != nullptr)
    return refuse("operand.skip is given; allowed: null, because call->words says when to skip");
  if (call.words != nullptr) {
    if (Status ok = check_pointer("call->words", call.words, 4); !ok) return ok;
  }
  if (operand.fingerprint == nullptr) return {};
  return check_pointer("operand.fingerprint", operand.fingerprint, 8);
}

const Target& CachedWeight::target() const {
  return layer_->plans().gemm(octile::Pass::kFprop).plan->target();
}

// Enqueues work on the device of the layer. If that is a name, the pass itself says so.
template <typename Enqueue>
Status CachedWeight::on_device(const Enqueue& enqueue) {
  const Target& device = target();
  if (device.kind != TargetKind::kLive) return {};
  if (!context_) {
    auto retained = PrimaryContext::retain(device.driver, device.ordinal);
    if (!retained) return tl::unexpected<Error>(retained.error());
    context_ = std::move(*retained);
  }
  const DeviceScope scope(*device.driver, device.ordinal, context_->get());
  if (scope.result() != CUDA_SUCCESS)
    return device.driver->check(scope.result(), "cuCtxPushCurrent");
  return device.driver->check(enqueue(*device.driver), "cuMemsetAsync");
}

// Enqueues that the contents are unknown, so that the next comparison finds them changed.
Status CachedWeight::forget(octile_fingerprint* fingerprints, CUstream stream) {
  const auto count = static_cast<std::size_t>(layer_->description().tensors());
  if (target().kind == TargetKind::kHost) {
    for (octile_fingerprint& one : std::span(fingerprints, count)) one.known = 0;
    return {};
  }
  return on_device([&](const Driver& driver) {
    return driver->cuMemsetD2D8Async(reinterpret_cast<CUdeviceptr>(&fingerprints->known),
                                     sizeof *fingerprints, 0, sizeof fingerprints->known, count,
                                     stream);
  });
}

// Enqueues that the copies just made are current.
Status CachedWeight::set_words(const Pass& pass, CUstream stream) {
  const bool both = pass.making.rowwise && pass.making.transposed;
  std::uint32_t* const first = both ? pass.words : pass.words + word_of(pass.making);
  const std::size_t count = both ? kWords : 1;
  if (target().kind == TargetKind::kHost) {
    std::fill_n(first, count, 1U);
    return {};
  }
  return on_device([&](const Driver& driver) {
    return driver->cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(first), 1, count, stream);
  });
}

Status CachedWeight::begin(const octile_weight_call& call, octile_layer_operand& operand,
                           CUstream stream) {
  if (Status ok = check(call, operand); !ok) return ok;
  State next = state_;
  const Decision decision = next.decide(call, operand);
  const Pass pass{decision.making, moment_of(call), decision.compares, call.words};
  if (decision.forgets) {
    if (Status ok = forget(operand.fingerprint, stream); !ok) return ok;
  }
  pass_.reset();
  if (!decision.making.any()) {
    complete(operand, decision.kept, false, nullptr,
             decision.kept.any() ? OCTILE_LAYER_CURRENT : OCTILE_LAYER_QUANTIZE);
    state_ = next;
    return {};
  }
  next.made.reset();  // should the pass fail
  state_ = next;
  pass_ = pass;
  complete(operand, decision.making, decision.compares, decision.skip, OCTILE_LAYER_QUANTIZE);
  return {};
}

Status CachedWeight::end(CUstream stream) {
  if (!pass_) return {};
  const Pass pass = *pass_;
  if (pass.words != nullptr) {
    if (Status ok = set_words(pass, stream); !ok) return ok;
  }
  pass_.reset();
  state_.current = state_.current | pass.making;
  state_.captured = state_.captured || pass.moment.capture != 0;
  state_.made = pass.moment;
  return {};
}

Result<bool> CachedWeight::is_current(const octile_weight_call& call,
                                      octile_layer_operand& operand) const {
  if (Status ok = check(call, operand); !ok) return tl::unexpected<Error>(ok.error());
  State next = state_;
  const Decision decision = next.decide(call, operand);
  if (!decision.kept.any() || decision.making.any()) return false;
  complete(operand, decision.kept, false, nullptr, OCTILE_LAYER_CURRENT);
  return true;
}

}  // namespace octile::layers
