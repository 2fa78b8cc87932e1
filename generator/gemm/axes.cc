#include "generator/gemm/axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <type_traits>

namespace octile {
namespace {

template <auto first, auto... rest, typename Object>
auto& at(Object& object) {
  if constexpr (sizeof...(rest) == 0) {
    return object.*first;
  } else {
    return at<rest...>(object.*first);
  }
}

// Returns the access to a member, or to a member of a member.
template <auto... path>
constexpr GemmAxisMember member() {
  using Value = std::remove_reference_t<decltype(at<path...>(std::declval<GemmConfig&>()))>;
  return {[](const GemmConfig& c) { return static_cast<int>(at<path...>(c)); },
          [](GemmConfig& c, int value) { at<path...>(c) = static_cast<Value>(value); },
          std::is_same_v<Value, bool>};
}

using Word = GemmAxisWord;
constexpr std::array kColumnWords{Word{0, ""}, Word{1, "n"}};
constexpr std::array kStoreWords{Word{static_cast<int>(EpilogueStore::kTma), "tma"},
                                 Word{static_cast<int>(EpilogueStore::kDirect), "direct"}};
constexpr std::array kPdlWords{Word{1, "early"}, Word{0, "end"}};
constexpr std::array kPromoteWords{Word{32, "32"},   Word{64, "64"},   Word{128, "128"},
                                   Word{256, "256"}, Word{512, "512"}, Word{kPromoteNone, "none"}};
constexpr std::array kScalesWords{Word{1, "held"}, Word{0, "read"}};
constexpr std::array kFactorsWords{Word{1, "mma"}, Word{0, "fma"}};

constexpr Word word_of(MatrixUnit unit) { return {static_cast<int>(unit), name_of(unit)}; }
constexpr Word word_of(Copies copies) { return {static_cast<int>(copies), name_of(copies)}; }
constexpr std::array kUnitWords{word_of(MatrixUnit::kWgmma), word_of(MatrixUnit::kMma),
                                word_of(MatrixUnit::kMmaScaled), word_of(MatrixUnit::kTcgen05)};
constexpr std::array kCopiesWords{word_of(Copies::kTma), word_of(Copies::kCpAsync)};

constexpr std::array kBlockM{16, 32, 64, 128, 192, 256};
constexpr std::array kBlockN{16,  32,  48,  64,  80,  96,  112, 128,
                             144, 160, 176, 192, 208, 224, 240, 256};
constexpr std::array kConsumers{1, 2, 3};
constexpr std::array kClusterM{1, 2, 1};
constexpr std::array kClusterN{1, 1, 2};
constexpr std::array kUnroll{1, 2, 2, 4, 4};
constexpr std::array kInFlight{1, 1, 2, 2, 4};
constexpr std::array kStores{static_cast<int>(EpilogueStore::kTma),
                             static_cast<int>(EpilogueStore::kDirect)};
constexpr std::array kCtasPerSm{1, 2};
constexpr std::array kSplits{1, 2, 3, 4, 6, 8};
constexpr std::array kOffAndOn{0, 1};
constexpr std::array kTailN{0, 64};

using C = GemmConfig;
constexpr std::array kAxes{
    GemmAxis{.field = "tile",
             .allowed = "MxNxK",
             .member = member<&C::block_m>(),
             .name_piece = "_t",
             .loop = 1,
             .values = kBlockM,
             .constant = "kBlockM",
             .purpose = "configuration: rows of D one CTA computes",
             .place = 1},
    GemmAxis{.field = "tile",
             .joint = "x",
             .member = member<&C::block_n>(),
             .name_piece = "x",
             .loop = 2,
             .values = kBlockN,
             .constant = "kBlockN",
             .purpose = "configuration: columns of D one CTA computes",
             .place = 2},
    GemmAxis{.field = "tile",
             .joint = "x",
             .member = member<&C::block_k>(),
             .name_piece = "x",
             .constant = "kBlockK",
             .purpose = "recipe: one 1x128 scale block along K",
             .place = 3},
    GemmAxis{.field = "stages",
             .allowed = "N",
             .member = member<&C::stages>(),
             .name_piece = "_s",
             .constant = "kStages",
             .purpose = "configuration: shared-memory ring depth",
             .place = 4},
    GemmAxis{.field = "wg",
             .allowed = "N",
             .member = member<&C::consumer_warpgroups>(),
             .name_piece = "_wg",
             .loop = 3,
             .values = kConsumers,
             .constant = "kConsumerWarpgroups",
             .purpose = "configuration: warpgroups issuing WGMMA",
             .place = 5},
    GemmAxis{.field = "cluster",
             .allowed = "MxN",
             .member = member<&C::cluster_m>(),
             .of_wgmma = true,
             .name_piece = "_c",
             .loop = 4,
             .values = kClusterM,
             .constant = "kClusterM",
             .purpose = "configuration: CTAs sharing a B tile",
             .place = 6},
    GemmAxis{.field = "cluster",
             .joint = "x",
             .member = member<&C::cluster_n>(),
             .of_wgmma = true,
             .name_piece = "x",
             .loop = 4,
             .values = kClusterN,
             .constant = "kClusterN",
             .purpose = "configuration: CTAs sharing an A tile",
             .place = 7},
    GemmAxis{.field = "unroll",
             .allowed = "N",
             .member = member<&C::unroll>(),
             .of_wgmma = true,
             .name_piece = "_u",
             .loop = 5,
             .values = kUnroll,
             .constant = "kUnroll",
             .purpose = "configuration: K-blocks a pass of the main loop covers",
             .place = 8},
    GemmAxis{.field = "inflight",
             .allowed = "N",
             .member = member<&C::in_flight>(),
             .of_wgmma = true,
             .name_piece = "f",
             .loop = 5,
             .values = kInFlight,
             .constant = "kInFlight",
             .purpose = "configuration: WGMMA groups issued before one is promoted",
             .place = 9},
    GemmAxis{.field = "raster",
             .allowed = "N|Nn",
             .member = member<&C::raster, &Raster::band>(),
             .name_piece = "_ras",
             .constant = "kRasterBand",
             .purpose = "configuration: tiles across a band of the walk over D",
             .place = 10},
    GemmAxis{.field = "raster",
             .member = member<&C::raster, &Raster::of_columns>(),
             .words = kColumnWords,
             .constant = "kRasterOfColumns",
             .purpose = "configuration: bands of columns, not rows",
             .place = 11},
    GemmAxis{.field = "ctas",
             .allowed = "N",
             .member = member<&C::ctas_per_sm>(),
             .name_piece = "_o",
             .loop = 7,
             .values = kCtasPerSm,
             .constant = "kCtasPerSm",
             .purpose = "configuration: CTAs resident on an SM",
             .place = 13},
    GemmAxis{.field = "store",
             .allowed = "tma|direct",
             .member = member<&C::store>(),
             .words = kStoreWords,
             .name_piece = "_",
             .loop = 6,
             .values = kStores},
    GemmAxis{.field = "pdl",
             .allowed = "early|end",
             .member = member<&C::pdl_early>(),
             .words = kPdlWords,
             .name_piece = "_",
             .loop = 9,
             .values = kOffAndOn,
             .constant = "kPdlEarly",
             .purpose = "configuration: the next kernel may start beside this one",
             .place = 14},
    GemmAxis{.field = "promote",
             .allowed = "N|none",
             .member = member<&C::promote>(),
             .words = kPromoteWords,
             .is_numerics = true,
             .name_piece = "_p",
             .constant = "kPromote",
             .purpose = "numerics: K elements per fp32 promotion; 0: all",
             .place = 16},
    GemmAxis{.field = "splits",
             .allowed = "N",
             .member = member<&C::splits>(),
             .is_numerics = true,
             .name_piece = "_k",
             .loop = 8,
             .values = kSplits,
             .constant = "kSplits",
             .purpose = "numerics: CTAs of a cluster that share a tile's K",
             .place = 12},
    GemmAxis{.field = "tail_n",
             .allowed = "N",
             .member = member<&C::tail_n>(),
             .of_wgmma = true,
             .only_if_set = true,
             .name_piece = "_n",
             .loop = 10,
             .values = kTailN,
             .constant = "kTailN",
             .purpose = "configuration: columns of a tail tile; 0: no tail",
             .place = 15},
    GemmAxis{.field = "scales",
             .allowed = "held|read",
             .member = member<&C::hold_scales>(),
             .words = kScalesWords,
             .of_wgmma = true,
             .only_if_set = true,
             .name_piece = "_",
             .loop = 11,
             .values = kOffAndOn,
             .constant = "kHoldScales",
             .purpose = "configuration: B's scales held for all strips",
             .place = 17,
             .has_constant =
                 [](const GemmProblem& p) { return stages_scales_of_columns(scheme_of(p)); }},
    GemmAxis{.field = "factors",
             .allowed = "mma|fma",
             .member = member<&C::mma_factors>(),
             .words = kFactorsWords,
             .of_wgmma = true,
             .only_if_set = true,
             .name_piece = "_",
             .loop = 12,
             .values = kOffAndOn,
             .has_constant = has_power_scales},
    GemmAxis{.field = "unit",
             .allowed = "wgmma|mma|mma_scaled|tcgen05",
             .member = member<&C::unit>(),
             .words = kUnitWords,
             .only_if_set = true,
             .is_numerics = true,
             .name_piece = "_"},
    GemmAxis{.field = "copies",
             .allowed = "tma|cp_async",
             .member = member<&C::copies>(),
             .words = kCopiesWords,
             .only_if_set = true,
             .name_piece = "_"},
};

// Reads a row's value from the beginning of `text` and removes it. A value of words is all of the
// text.
bool take_value(const GemmAxis& axis, std::string_view& text, GemmConfig& config) {
  if (!text.starts_with(axis.joint)) return false;
  text.remove_prefix(axis.joint.size());
  int value = 0;
  if (axis.words.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  } else {
    const auto it = std::ranges::find(axis.words, text, &GemmAxisWord::word);
    if (it == axis.words.end()) return false;
    value = it->value;
    text = {};
  }
  axis.member.set(config, value);
  return true;
}

}  // namespace

std::span<const GemmAxis> gemm_axes() { return kAxes; }

std::vector<const GemmAxis*> axes_with_constants(const GemmProblem& problem) {
  std::vector<const GemmAxis*> axes;
  for (const GemmAxis& axis : kAxes) {
    const bool is_emitted = axis.has_constant == nullptr || axis.has_constant(problem);
    if (is_emitted && !axis.constant.empty()) axes.push_back(&axis);
  }
  std::ranges::sort(axes, {}, &GemmAxis::place);
  return axes;
}

std::string value_text(const GemmAxis& axis, const GemmConfig& config) {
  const int value = axis.member.get(config);
  const auto it = std::ranges::find(axis.words, value, &GemmAxisWord::value);
  return it == axis.words.end() ? fmt::format_int(value).str() : std::string(it->word);
}

std::string fields_text(const GemmConfig& config,
                        bool (*is_shown)(const GemmAxis&, const GemmConfig&)) {
  std::string text;
  std::string_view field;
  for (const GemmAxis& axis : kAxes) {
    if (!is_shown(axis, config)) continue;
    if (axis.field != field) {
      text += fmt::format("{}{}=", text.empty() ? "" : " ", axis.field);
      field = axis.field;
    }
    text.append(axis.joint).append(value_text(axis, config));
  }
  return text;
}

bool parse_axis_field(std::string_view field, std::string_view text, GemmConfig& config) {
  bool known = false;
  for (const GemmAxis& axis : kAxes) {
    if (axis.field != field) continue;
    known = true;
    if (!take_value(axis, text, config)) return false;
  }
  return known && text.empty();
}

std::string allowed_fields() {
  std::string text;
  for (const GemmAxis& axis : kAxes) {
    if (axis.allowed.empty()) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", axis.field, axis.allowed);
  }
  return text;
}

}  // namespace octile
