// A rank of a launcher (torchrun, srun, mpirun) that runs one `octile tune` for each GPU.
#pragma once

#include <optional>
#include <string>

#include "generator/core/error.h"

namespace octile::tools {

// Returns the GPU of this process: "cuda:N" by its rank on this host, if a launcher says one, else
// "cuda". Where the launcher shows each rank one GPU, it is that one. Errors: kInvalidArgument for
// a variable that is not a rank, and for a rank without a GPU; those of opening the driver.
Result<std::string> device_of_rank();

// Returns how many ranks a launcher has started on this host, 1 without a launcher or if it says no
// count. Errors: kInvalidArgument for a variable that is not a count.
Result<int> ranks_on_host();

// Returns the cores of this rank: those that it may run on, divided by the ranks on this host if
// they share them. Errors: those of ranks_on_host().
Result<int> cores_of_rank();

// Returns "LOCAL_RANK is 0" if a launcher has started this process as one of several, or as one of
// a number that it does not say. A script of Slurm is none of several.
std::optional<std::string> one_of_several();

// Returns a name of this run that all ranks of a step of Slurm know and no other step has; empty
// without one.
std::string name_of_step();

}  // namespace octile::tools
