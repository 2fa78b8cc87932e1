// The verbs of `octile cache`. Each has one file and one function that adds it.
#pragma once

#include "tools/command.h"

namespace octile::tools::verbs {

// Exit statuses besides 0 (done), 1 (failed) and 2 (bad usage).
inline constexpr int kWouldMiss = 3;  // why
inline constexpr int kDamaged = 3;    // show, verify, export: some entries cannot be used
inline constexpr int kUnread = 3;     // list, verify, export: some could not be judged
inline constexpr int kDiffers = 4;    // verify --recompile: the compiler gives other bytes

Command add_path(CLI::App& cache);
Command add_config(CLI::App& cache);
Command add_list(CLI::App& cache);
Command add_show(CLI::App& cache);
Command add_verify(CLI::App& cache);
Command add_why(CLI::App& cache);
Command add_export(CLI::App& cache);
Command add_import(CLI::App& cache);
Command add_prune(CLI::App& cache);
Command add_clear(CLI::App& cache);
Command add_stats(CLI::App& cache);

}  // namespace octile::tools::verbs
