// The functions that a search calls for a problem of any family. families.cc dispatches it; a new
// family adds its bench there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generator/families.h"

namespace octile {

// Checks that operands can be made for the problem, which a search needs. Errors: kUnsupported.
Status check_operands(const Problem& problem);

// Returns the bytes that a call cannot avoid moving between memory and the GPU.
std::int64_t bytes_moved(const Problem& problem, std::int64_t tokens);

namespace tuner {

struct TunerContext;
struct Ranked;
class GpuBench;

// Returns a bench of the candidates on fresh random operands. Errors: as the family's make_slots.
Result<std::unique_ptr<GpuBench>> make_bench(TunerContext& context, const Problem& problem,
                                             std::int64_t tokens, std::vector<Ranked> candidates,
                                             std::uint64_t seed);

}  // namespace tuner
}  // namespace octile
