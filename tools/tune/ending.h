// The end of a run of `octile tune`: its output and its files.
#pragma once

#include <functional>
#include <string>

#include "tools/tune/decide.h"

namespace octile::tools {

// Returns a decision as JSON, with its layer and what it was measured to lose.
Json line_of(const TuneRun& run, const tuner::Decision& decision);
// Prints such a line, completed, to stdout.
void print_line(Json line, bool resumed, std::string_view served_by);

struct TuneEnding {
  std::string devices;  // "cuda:0"
  // Returns the line of line_of(), with facts that only the deciding process knows.
  std::function<Json(const tuner::Decision&)> line;
};

// Prints tables or lines, keeps --records, and writes --report. Lines of decisions that were made
// by this run, and not by others of its folder, are printed already. Ends the process if SIGINT
// ended the run. Errors: kInternal if a question has no right candidate; those of the files.
Status end_run(const TuneRun& run, const TuneEnding& ending, const tuner::RunResult& result);

}  // namespace octile::tools
