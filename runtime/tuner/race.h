// Finds the fastest of several candidates that differ by less than the device drifts.
//
//   screening: laps over all survivors, forwards and backwards in turn; clear losers drop out
//   final:     blocks A B D D B A of the last few, with the default D in the middle, so that a
//              linear drift cancels within a block; candidates are compared block by block, never
//              by their medians
//
// Noise is the difference that the final shows between the default and itself. The default stays
// unless the fastest candidate beats it by more than separate races differ by. The winner must then
// beat the default by more than the noise. Candidates within the noise of the fastest, but at least
// within half a percent, are a tie. The one with the lowest number wins a tie.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "generator/core/error.h"
#include "runtime/measure/statistics.h"
#include "runtime/prove/bench.h"
#include "runtime/tuner/budget.h"

namespace octile::tuner {

struct RaceOptions {
  int screening_laps = 8;  // at most
  // Candidates in the final beside the default. With few finalists, screening noise eliminates near
  // twins of the winner, and two searches then choose differently: in simulations 12 % of decisions
  // with 4 finalists, 4 % with 8.
  int finalists = 8;
  int least_blocks = 10;  // ranks give a 95 % interval from 6 on, from 9 without either extreme
  int most_blocks = 48;   // for open decisions; half of all finals end at least_blocks
  // The least noise that is assumed, however quiet the device. A race does not vary the placement
  // of buffers and code, which makes about as much difference.
  double least_noise = 0.003;
  // The least distance from the fastest that is not a tie. Closer candidates change places from
  // search to search: two searches of 32 problems differed in 7, by 0.1 to 0.6 % each.
  double least_tie = 0.005;
  // The least gain of the fastest over the default. Separate races of two configurations, each with
  // a narrow interval, put them 0.4 to 1.2 % apart, either way, and a raster gains as much. With
  // 0.003 here, any two of four searches of 32 GEMMs agreed on 27 to 31 of them; with 0.01 on 30
  // to 32.
  double least_gain = 0.01;
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
