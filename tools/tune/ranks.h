// A rank of a launcher (torchrun, srun, mpirun) that runs one `octile tune` for each GPU.
#pragma once

#include <string>

#include "generator/core/error.h"

namespace octile::tools {

// Returns the GPU of this process: "cuda:N" by its rank on this host, if a launcher says one, else
// "cuda". Where the launcher shows each rank one GPU, it is that one. Errors: kInvalidArgument for
// a variable that is no rank, and for a rank without a GPU; those of opening the driver.
Result<std::string> device_of_rank();

}  // namespace octile::tools
