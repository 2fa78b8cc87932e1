// Which of several candidates is the fastest, where they differ by less than the device drifts.
//
//   screening: laps over all survivors, forwards and backwards in turn; clear losers drop out
//   final:     blocks A B D D B A of the last few with the default D in the middle, so that a
//   linear
//              drift cancels within a block; candidates are compared block by block, never by their
//              medians
//
// Noise is what the final shows of the default against itself. A candidate wins where it beats the
// default by more than that, and where the fastest beats it by more than separate races differ by;
// otherwise the default stays. Candidates within the noise of the fastest, or within half a percent
// where the device is quieter, are a tie, which falls to the one with the lowest number.
#pragma once

#include <span>
#include <vector>

#include "generator/core/error.h"
#include "runtime/measure/statistics.h"
#include "runtime/tuner/bench.h"
#include "runtime/tuner/budget.h"

namespace octile::tuner {

struct RaceOptions {
  int screening_laps = 8;  // at most
  // Beside the default. Few lose near twins of the winner to the noise of the screening, and two
  // searches then settle on different ones: simulated, 12 % of decisions with 4, 4 % with 8.
  int finalists = 8;
  int least_blocks = 10;  // ranks give a 95 % interval from 6 on, from 9 without either extreme
  int most_blocks = 48;   // where the decision stays open; half of all finals end at the least
  // Differences below are never called a gain, however quiet the device: placement of buffers and
  // code, which a race does not vary, is worth about as much.
  double least_noise = 0.003;
  // Of the fastest: closer ones change places from search to search (measured: two searches of 32
  // problems differed in 7, by 0.1 to 0.6 % each).
  double least_tie = 0.005;
  // Of the fastest over the default. Separate races of two configurations, each sure of itself,
  // have put them 0.4 to 1.2 % apart, either way; what a raster gains is as much. Of four searches
  // of 32 products two agreed on 27 to 31 of them with 0.003 here, on 30 to 32 with this.
  double least_gain = 0.01;
  int throttled_laps = 8;  // in a row that are repeated; the next is kept as it is
};

// Who takes part, and a time to go by where there is none yet from screening.
struct Entry {
  int candidate = 0;
  double first_us = 0;
};

// A finalist's microseconds a call: median over the blocks and its 95 % interval.
struct Standing {
  int candidate = 0;
  double median_us = 0;
  Interval interval_us;
  double over_best = 1;  // median of the paired ratios to the fastest
};

struct RaceResult {
  bool finished = false;  // false: out of time before the final could say anything
  int winner = 0;
  std::vector<Standing> standings;  // fastest first; the default is among them where it took part
  double gain = 1;                  // the default's time over the winner's, paired
  Interval gain_interval{1, 1};
  double noise = 0;
  int laps = 0;
  int blocks = 0;
  int throttled_repeated = 0;
  int throttled_kept = 0;
  DeviceTelemetry conditions;  // medians over laps and blocks
};

// `entries`: by candidate, ascending, not empty; where 0 is not among them, the lowest stands in
// for the default.
Result<RaceResult> race(Bench& bench, std::span<const Entry> entries, const Budget& budget,
                        const RaceOptions& options);

}  // namespace octile::tuner
