// One search: from candidates to the one that serves.
//
//   compile in the background -> drop what spills -> spot check -> first time -> race -> verify
//   the variants of the fastest so far go through the steps up to the first time, too
//
// While later candidates are compiled, earlier ones are checked and timed. The device is given to
// other processes while this one waits for a compiler, and is this one's when the search ends. A
// candidate that samples show to be wrong is never timed. If one of the fastest is wrong elsewhere,
// the others race again.
#pragma once

#include <string>
#include <vector>

#include "generator/core/error.h"
#include "runtime/prove/bench.h"
#include "runtime/tuner/budget.h"
#include "runtime/tuner/race.h"

namespace octile::tuner {

enum class Outcome {
  kTuned,         // the winner beats the default by more than the noise
  kDefaultStays,  // nothing does
  kOutOfTime,     // nothing is decided; the default serves until a later search
  kNoneRight,     // no candidate gives right results
  kTooLarge,      // its operands find no place in the device's memory
};
std::string_view name_of(Outcome outcome);  // "tuned", "default stays", ...

enum class Stage { kCompile, kSpills, kVerify };
std::string_view name_of(Stage stage);  // "compile", "spills", "results"

// A candidate that dropped out before the race.
struct Dropped {
  int candidate = 0;
  Stage stage = Stage::kCompile;
  std::string why;
};

// The seconds of a search, by their use.
struct SearchSeconds {
  double builds = 0;  // waiting for candidates that were not compiled yet
  double verify = 0;
  double first_times = 0;
  double race = 0;
};

struct SearchResult {
  Outcome outcome = Outcome::kOutOfTime;
  int winner = 0;
  RaceResult race;
  std::vector<Dropped> dropped;
  int compiled = 0;  // candidates without spills
  int timed = 0;     // candidates timed at least once
  SearchSeconds seconds;
};

// Searches the bench's candidates. Candidate 0 is the default, which is dropped for wrong results
// but not for spills. Errors: nothing more can be measured; the sentence says with which candidate.
Result<SearchResult> search(Bench& bench, const Budget& budget, const RaceOptions& options = {});

}  // namespace octile::tuner
