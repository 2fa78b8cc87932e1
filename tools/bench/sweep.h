// octile bench quantize: quantisers over row counts and widths, beside their bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/measurement.h"
#include "tools/command_line/command_line.h"

namespace octile::tools {

// A quantiser may take this much longer than a stream of the same bytes, in microseconds.
inline constexpr double kSweepAllowanceUs = 0.5;

// The axes of a sweep.
struct Sweep {
  std::vector<Problem> problems;  // problems of any row count
  std::vector<std::int64_t> rows;
};

// Returns 1, 2, 4, ... 4096: the row counts of --sweep.
std::vector<std::int64_t> sweep_rows();

// Returns the swept problems of these widths: row-wise, transposed and both copies, every
// granularity, fused sources and groups. If `selected` is not empty, only problems whose text
// contains one of its words. Errors: kInvalidArgument for a width that no problem admits, or if no
// problem is selected.
Result<std::vector<Problem>> sweep_problems(const std::vector<std::int64_t>& widths,
                                            const std::vector<std::string>& selected);

// Returns the time that the quantiser of a record should not exceed: that of the stream beside it,
// whose launch it includes, and kSweepAllowanceUs.
double bound_us(const Record& record);

// Adds `bench quantize`. Returns what runs it, or nothing if the command line does not name it.
std::function<std::optional<Status>()> add_bench_quantize(CLI::App& bench);

}  // namespace octile::tools
