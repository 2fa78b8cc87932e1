#include "tools/tune/ranks.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "runtime/driver/driver.h"
#include "tools/command.h"

namespace octile::tools {
namespace {

// torchrun's is first, because srun may start it.
constexpr std::array kVariables{"LOCAL_RANK",        "OMPI_COMM_WORLD_LOCAL_RANK",
                                "MPI_LOCALRANKID",   "MV2_COMM_WORLD_LOCAL_RANK",
                                "PALS_LOCAL_RANKID", "SLURM_LOCALID"};

}  // namespace

Result<std::string> device_of_rank() {
  for (const char* variable : kVariables) {
    const char* value = ::secure_getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text = value;
    int rank = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
    if (error != std::errc() || end != text.data() + text.size() || rank < 0)
      return refuse(fmt::format(
          "{} is '{}'; allowed: the number of a rank on this host, from 0; --device names a GPU "
          "whatever it says",
          variable, text));
    const auto driver = Driver::open();
    if (!driver) return tl::unexpected<Error>(needs_gpu("tune", driver.error()));
    const int count = (*driver)->device_count();
    if (count == 1) return std::string("cuda:0");
    if (rank < count) return fmt::format("cuda:{}", rank);
    return refuse(
        fmt::format("{} is {}, and {} GPUs are visible; allowed: at most one rank for each GPU, or "
                    "one visible GPU for each rank",
                    variable, rank, count));
  }
  return std::string("cuda");
}

}  // namespace octile::tools
