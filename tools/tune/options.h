// The options of `octile tune`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tools/command.h"
#include "tools/common/part.h"

namespace octile::tools {

struct TuneOptions {
  WorkOptions work;
  std::string device;   // empty: cuda, and h200 to explain without a GPU
  std::string devices;  // "0,1" or "all": a process for each GPU; empty: this one alone
  std::string part;     // "I/N": of the questions; empty: all
  std::string out;
  std::string baseline;
  std::string records;
  std::string report;
  std::string run;                       // of --force and --refresh; empty: this run's own
  std::optional<double> budget_seconds;  // empty: what the questions need
  std::optional<double> max_error;       // empty: a GEMM's promotion interval is its problem's
  std::uint64_t seed = 1;
  Option seed_option;
  bool force = false;
  bool refresh = false;
  bool explain = false;
  bool list = false;
  bool wide = false;
  bool json = false;
  bool progress = false;
  bool quiet = false;

  void add_to(CLI::App& app);
  // Errors: kInvalidArgument for values and pairs of options that mean nothing.
  Status check() const;
  bool decides_again() const { return force || refresh; }

 private:
  Status check_explain() const;
  Status check_refresh() const;
  Status check_sharing() const;
};

}  // namespace octile::tools
