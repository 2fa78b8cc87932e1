// Finds the fastest of several candidates that differ by less than the device drifts.
//
//   screening: laps over all survivors, forwards and backwards in turn; clear losers drop out
//   final:     blocks A B D D B A of the last few, with the default D in the middle, so that a
//              linear drift cancels within a block; candidates are compared block by block, never
//              by their medians
//
// Noise is the difference that the final shows between the default and itself. rule.h says which
// finalist wins. The final ends as soon as more blocks cannot change that.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "generator/core/error.h"
#include "runtime/measure/statistics.h"
#include "runtime/prove/bench.h"
#include "runtime/tuner/budget.h"
#include "runtime/tuner/rule.h"

namespace octile::tuner {

struct RaceOptions {
  int screening_laps = 8;  // at most
  // Candidates in the final beside the default. With few finalists, screening noise eliminates near
  // twins of the winner, and two searches then choose differently: in simulations 12 % of decisions
  // with 4 finalists, 4 % with 8.
  int finalists = 8;
  int least_blocks = 10;  // ranks give a 95 % interval from 6 on, from 9 without either extreme
  // For open decisions; most finals end at least_blocks. Blocks of long calls end sooner, after 6
  // at least, because what stays open then favours what is there.
  int most_blocks = 48;
  double most_final_seconds = 1.5;
  // The least noise that is assumed, however quiet the device. A race does not vary the placement
  // of buffers and code, which makes about as much difference.
  double least_noise = 0.003;
  Allowances allowances;
  // The candidate that a record of an earlier search chose for exactly this question.
  std::optional<int> incumbent;
  // Called when a candidate was timed for the first time: the least of all such times, and the
  // default's, which is 0 as long as it has none. null: nobody watches.
  std::function<void(double best_us, double default_us)> watch;
  int throttled_laps = 8;  // laps in a row that are repeated; the next one counts
};

// A candidate that takes part, and a first time for it, which counts until screening has one.
struct Entry {
  int candidate = 0;
  double first_us = 0;
};

// A finalist's microseconds per call: the median over the blocks and its 95 % interval.
struct Standing {
  int candidate = 0;
  double median_us = 0;
  Interval interval_us;
  double over_best = 1;  // median of the ratios to the fastest, paired by block
  Interval over_best_interval{1, 1};
};

struct RaceResult {
  bool finished = false;  // false if time was up before the final had enough blocks
  int winner = 0;
  std::vector<Standing> standings;  // fastest first; with the default, if it took part
  double gain = 1;                  // the default's time over the winner's, paired by block
  Interval gain_interval{1, 1};
  double noise = 0;
  int laps = 0;
  int blocks = 0;
  int throttled_repeated = 0;
  int throttled_kept = 0;
  DeviceTelemetry conditions;  // medians over laps and blocks
};

// Races the entries, which are sorted by candidate and not empty. If candidate 0 is not among them,
// the first entry stands in for the default.
Result<RaceResult> race(Bench& bench, std::span<const Entry> entries, const Budget& budget,
                        const RaceOptions& options);

}  // namespace octile::tuner
