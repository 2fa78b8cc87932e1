#include "generator/quantize_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>

namespace octile {
namespace {

constexpr int kWarp = 32;
constexpr int kVectorBytes = 16;     // one load of one thread
constexpr int kScaleBlock = 128;     // elements of a row that share a scale
constexpr int kMaxVectors = 16;      // 64 registers of input: more would spill
constexpr int kThreadsPerSm = 2048;  // Hopper, CUDA C++ Programming Guide, compute capability 9.0
constexpr std::int64_t kScaleRowPadding = 4;  // scales are padded to 4 along rows (layout table)
constexpr std::int64_t kMaxGrid = INT32_MAX;  // gridDim.x

int elements_per_vector(const QuantizeProblem& p) { return kVectorBytes / size_of(p.x); }

bool parse_int(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_field(std::string_view name, std::string_view value, QuantizeConfig& c) {
  if (name == "threads") return parse_int(value, c.threads);
  if (name == "per_sm") return parse_int(value, c.blocks_per_sm);
  if (name != "tile") return false;
  const std::size_t x = value.find('x');
  return x != std::string_view::npos && parse_int(value.substr(0, x), c.tile_rows) &&
         parse_int(value.substr(x + 1), c.tile_cols);
}

bool is_power_of_two(int v) { return v > 0 && std::has_single_bit(static_cast<unsigned>(v)); }

Status refuse(std::string_view field, int value, std::string_view rule) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("quantise configuration: {} is {}; {}", field, value, rule));
}

}  // namespace

QuantizeResources resources_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  QuantizeResources r;
  r.threads = c.threads;
  r.lanes_per_block = kScaleBlock / elements_per_vector(p);
  const int sharers = p.q.granularity == Granularity::k128x128 ? c.threads : kWarp;
  const std::int64_t elements = std::int64_t{c.tile_rows} * c.tile_cols;
  r.vectors_per_thread =
      static_cast<int>(elements / (std::int64_t{sharers} * elements_per_vector(p)));
  return r;
}

Status check_config(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (!is_power_of_two(c.threads) || c.threads < kWarp || c.threads > 1024) {
    return refuse("threads", c.threads, "a power of two from 32 to 1024 is allowed");
  }
  if (c.blocks_per_sm < 1 || c.blocks_per_sm * c.threads > kThreadsPerSm) {
    return refuse(
        "per_sm", c.blocks_per_sm,
        fmt::format("1 to {} is allowed with {} threads", kThreadsPerSm / c.threads, c.threads));
  }
  const int warp_cols = kWarp * elements_per_vector(p);
  if (p.q.granularity == Granularity::k128x128) {
    if (c.tile_rows != kScaleBlock) return refuse("tile rows", c.tile_rows, "128 is allowed");
    if (c.tile_cols != kScaleBlock) return refuse("tile columns", c.tile_cols, "128 is allowed");
  } else {
    if (!is_power_of_two(c.tile_rows)) {
      return refuse("tile rows", c.tile_rows, "a power of two is allowed");
    }
    if (!is_power_of_two(c.tile_cols) || c.tile_cols % warp_cols != 0) {
      return refuse(
          "tile columns", c.tile_cols,
          fmt::format("a power of two times the {} columns a warp loads is allowed", warp_cols));
    }
  }
  const int vectors = resources_of(p, c).vectors_per_thread;
  if (vectors < 1 || vectors > kMaxVectors) {
    return refuse("vectors per thread", vectors,
                  fmt::format("1 to {} 16-byte loads of a thread are allowed (the tile over the "
                              "threads that hold it)",
                              kMaxVectors));
  }
  return {};
}

Result<std::int64_t> launch_blocks(const QuantizeProblem& p, const QuantizeConfig& c,
                                   std::int64_t rows) {
  if (rows <= 0 || p.cols <= 0) return std::int64_t{0};
  const bool square = p.q.granularity == Granularity::k128x128;
  const std::int64_t covered_rows = square ? rows : round_up(rows, kScaleRowPadding);
  const std::int64_t tiles =
      ceil_div(covered_rows, c.tile_rows) * ceil_div(p.cols, std::int64_t{c.tile_cols});
  const std::int64_t blocks = square ? tiles : ceil_div(tiles, c.threads / kWarp);
  if (blocks > kMaxGrid) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("quantise of {} x {} needs {} thread blocks; a grid holds {}", rows,
                            p.cols, blocks, kMaxGrid));
  }
  return blocks;
}

std::string to_text(const QuantizeConfig& c) {
  return fmt::format("tile={}x{} threads={} per_sm={}", c.tile_rows, c.tile_cols, c.threads,
                     c.blocks_per_sm);
}

Result<QuantizeConfig> parse_quantize_config(std::string_view text) {
  QuantizeConfig config;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view field = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (field.empty()) continue;
    const std::size_t equals = field.find('=');
    if (equals == std::string_view::npos ||
        !parse_field(field.substr(0, equals), field.substr(equals + 1), config)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("quantise configuration field '{}' is not one of tile=ROWSxCOLS, "
                              "threads=N, per_sm=N",
                              field));
    }
  }
  return config;
}

std::string kernel_name(const QuantizeProblem& p, const QuantizeConfig& c) {
  return fmt::format("octile_quantize_{}_{}_{}_{}_t{}x{}_w{}_r{}", name_of(p.x), name_of(p.q.dtype),
                     name_of(p.q.granularity), name_of(p.q.scale), c.tile_rows, c.tile_cols,
                     c.threads / kWarp, c.blocks_per_sm);
}

}  // namespace octile
