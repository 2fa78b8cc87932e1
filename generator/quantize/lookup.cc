#include "generator/quantize/lookup.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "generator/quantize/fused_source.h"

namespace octile {
namespace {

constexpr std::uint32_t kInfinity = 0x7f80;  // bits of a bf16
constexpr std::uint32_t kSign = 0x8000;

bool is_costly(ExprOp op) {
  return op == ExprOp::kExp || op == ExprOp::kTanh || op == ExprOp::kSigmoid ||
         op == ExprOp::kNormCdf || op == ExprOp::kNormPdf;
}

// Adds the parts of `e` that hold a costly operation. Returns true if there is one.
bool collect(const Expr& e, std::vector<Expr>& parts) {
  bool costly = is_costly(e.op());
  for (const Expr& argument : e.arguments()) costly = collect(argument, parts) || costly;
  if (costly && e.input_count() == 1) parts.push_back(e);
  return costly;
}

// Returns the bits of the part's value at every magnitude up to infinity.
std::vector<std::uint32_t> values_of(const Expr& part, std::uint32_t sign) {
  std::vector<float> x(kInfinity + 1);
  std::vector<float> y(x.size());
  for (std::uint32_t i = 0; i <= kInfinity; ++i) x[i] = std::bit_cast<float>((i | sign) << 16);
  part.evaluate(std::array<const float*, 1>{x.data()}, x.size(), y.data());
  std::vector<std::uint32_t> bits(y.size());
  std::ranges::transform(y, bits.begin(), [](float v) { return std::bit_cast<std::uint32_t>(v); });
  return bits;
}

// Returns Lookup::first and Lookup::last.
std::pair<std::uint32_t, std::uint32_t> own_magnitudes(const Expr& part) {
  std::uint32_t first = kInfinity;
  std::uint32_t last = 0;
  for (const std::uint32_t sign : {std::uint32_t{0}, kSign}) {
    const std::vector<std::uint32_t> bits = values_of(part, sign);
    const auto low = std::ranges::find_if(bits, [&](std::uint32_t v) { return v != bits.front(); });
    if (low == bits.end()) continue;  // all magnitudes have one value
    const auto high =
        std::find_if(bits.rbegin(), bits.rend(), [&](std::uint32_t v) { return v != bits.back(); });
    first = std::min(first, static_cast<std::uint32_t>(low - bits.begin()) - 1);
    last = std::max(last, static_cast<std::uint32_t>(bits.rend() - high));
  }
  return {std::min(first, last), last};
}

// Returns true if a NaN of the input reaches the result without the part.
bool is_read_beside(const Expr& source, const Expr& part) {
  std::string rest = source.to_text();
  const std::string text = part.to_text();
  for (std::size_t at = rest.find(text); at != std::string::npos; at = rest.find(text)) {
    rest.erase(at, text.size());
  }
  return rest.find("x0") != std::string::npos;
}

std::shared_ptr<const Lookup> find_lookup(std::string_view text) {
  const Result<FusedSource> source = fused_source(text);
  if (!source || source->halves() || source->inputs() != 1) return nullptr;
  std::vector<Expr> parts;
  collect(source->parts.front(), parts);
  std::ranges::stable_sort(parts, std::greater<>(), &Expr::node_count);
  for (const Expr& part : parts) {
    if (!is_read_beside(source->parts.front(), part)) continue;
    const auto [first, last] = own_magnitudes(part);
    if (last - first >= kLookupMagnitudes) continue;
    return std::make_shared<const Lookup>(
        Lookup{part, static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(last)});
  }
  return nullptr;
}

// The result for a text. The list only grows, at its head, and nothing is locked: a child of fork
// finds it whole, at any moment of the parent's threads.
struct Known {
  std::string source;
  std::shared_ptr<const Lookup> lookup;
  const Known* next = nullptr;
};
constinit std::atomic<const Known*> known_lookups = nullptr;

const Known* find_known(const Known* first, std::string_view source) {
  while (first != nullptr && first->source != source) first = first->next;
  return first;
}

}  // namespace

std::shared_ptr<const Lookup> lookup_of(std::string_view source) {
  const Known* first = known_lookups.load(std::memory_order_acquire);
  if (const Known* known = find_known(first, source)) return known->lookup;
  auto own = std::make_unique<Known>(Known{std::string(source), find_lookup(source)});
  for (;;) {
    own->next = first;
    if (known_lookups.compare_exchange_weak(first, own.get(), std::memory_order_release,
                                            std::memory_order_acquire))
      return own.release()->lookup;
    // Another thread may have added the same text meanwhile.
    if (const Known* known = find_known(first, source)) return known->lookup;
  }
}

}  // namespace octile
