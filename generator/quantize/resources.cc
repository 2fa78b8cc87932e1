#include "generator/quantize/resources.h"

#include <algorithm>

#include "generator/quantize/fused_source.h"
#include "generator/quantize/units.h"

namespace octile {
namespace {

// Returns the bytes of one warp's ring: the inputs of two steps.
int ring_bytes_of_warp(const QuantizeProblem& p, const QuantizeConfig& c) {
  if (!streams_rows(p)) return 0;
  const int row = source_shape(p.source).inputs * kWarp * kStreamedElements * size_of(p.x.dtype);
  return 2 * step_rows(p, c) * row;
}

int vectors_per_thread(const QuantizeProblem& p, const QuantizeConfig& c) {
  const int sharers = works_by_warps(p) ? kWarp : c.threads;
  const std::int64_t elements = std::int64_t{step_rows(p, c)} * c.tile_cols;
  return static_cast<int>(elements / (std::int64_t{sharers} * elements_per_vector(p)));
}

}  // namespace

int step_rows(const QuantizeProblem& p, const QuantizeConfig& c) {
  constexpr int kMaskedRows = 8;  // loads of a thread
  if (template_of(p) == QuantizeTemplate::kNormRows) return 1;
  if (streams_rows(p)) {
    const int rows = takes_both_halves(p) ? 2 : 4;  // 32 values of a thread
    return std::min(rows, c.tile_rows);
  }
  const bool masked =
      template_of(p) == QuantizeTemplate::kWarpTile && p.grouping == Grouping::kMasked;
  return masked ? std::min(kMaskedRows, c.tile_rows) : c.tile_rows;
}

int ring_bytes(const QuantizeProblem& p, const QuantizeConfig& c) {
  return c.threads / kWarp * ring_bytes_of_warp(p, c);
}

QuantizeSharedMemory shared_memory_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  QuantizeSharedMemory m;
  m.ring_bytes = ring_bytes_of_warp(p, c);
  if (c.looks_up) {
    m.rings_offset = m.table_offset + kLookupBytes;
    m.dynamic_bytes = m.rings_offset + ring_bytes(p, c);
  }
  if (c.halves_together) {
    m.dynamic_bytes = m.waiting_offset + c.threads * vectors_per_thread(p, c) * kVectorBytes;
  }
  return m;
}

int staged_bytes(const QuantizeConfig& c) {
  // The encode scales of the columns are at most one for 32 rows.
  return c.tile_rows * kScaleBlock + c.tile_rows / 32 * kScaleBlock * 4;
}

int resident_smem_bytes(const QuantizeProblem& p, const QuantizeConfig& c) {
  constexpr int kOthers = 4096;  // scales of rows, sums of columns
  const int dynamic = shared_memory_of(p, c).dynamic_bytes;
  if (c.halves_together) return dynamic + staged_bytes(c) + kOthers;
  return c.looks_up ? dynamic : 0;
}

QuantizeResources resources_of(const QuantizeProblem& p, const QuantizeConfig& c) {
  return {.threads = c.threads,
          .smem_bytes = shared_memory_of(p, c).dynamic_bytes,
          .vectors_per_thread = vectors_per_thread(p, c)};
}

}  // namespace octile
