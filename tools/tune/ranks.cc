#include "tools/tune/ranks.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "runtime/driver/driver.h"
#include "tools/command.h"

namespace octile::tools {
namespace {

// The variables that a launcher sets for its ranks. torchrun's is first, because srun may start it.
struct Launcher {
  const char* rank;                   // on this host, from 0
  std::array<const char*, 2> counts;  // of ranks on this host; null: it says none
};
constexpr std::array kLaunchers{
    Launcher{"LOCAL_RANK", {"LOCAL_WORLD_SIZE", nullptr}},
    Launcher{"OMPI_COMM_WORLD_LOCAL_RANK", {"OMPI_COMM_WORLD_LOCAL_SIZE", nullptr}},
    Launcher{"MPI_LOCALRANKID", {"MPI_LOCALNRANKS", nullptr}},
    Launcher{"MV2_COMM_WORLD_LOCAL_RANK", {"MV2_COMM_WORLD_LOCAL_SIZE", nullptr}},
    Launcher{"PALS_LOCAL_RANKID", {nullptr, nullptr}},
    Launcher{"SLURM_LOCALID", {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"}}};

// Returns a variable's text; empty if it is not set.
std::string_view text_of(const char* variable) {
  const char* value = variable == nullptr ? nullptr : ::secure_getenv(variable);
  return value == nullptr ? std::string_view() : value;
}

const Launcher* launcher() {
  const auto* found = std::ranges::find_if(
      kLaunchers, [](const Launcher& one) { return !text_of(one.rank).empty(); });
  return found == kLaunchers.end() ? nullptr : found;
}

// Returns the whole number that the text is, or -1.
int number_of(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

// Slurm says "4(x2),1" of two nodes with 4 tasks and one with 1; the first stands for all.
std::string_view first_count(std::string_view text) {
  return text.substr(0, text.find_first_of("(,"));
}

// Returns how many cores a process may run on, or 0 if the system does not say.
int cores_of_process(pid_t process) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return ::sched_getaffinity(process, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

}  // namespace

Result<std::string> device_of_rank() {
  const Launcher* started_by = launcher();
  if (started_by == nullptr) return std::string("cuda");
  const std::string_view text = text_of(started_by->rank);
  const int rank = number_of(text);
  if (rank < 0)
    return refuse(
        fmt::format("{} is '{}'; allowed: the number of a rank on this host, from 0; --device "
                    "names a GPU at any value",
                    started_by->rank, text));
  const auto driver = Driver::open();
  if (!driver) return tl::unexpected<Error>(needs_gpu("tune", driver.error()));
  const int count = (*driver)->device_count();
  if (count == 1) return std::string("cuda:0");
  if (rank < count) return fmt::format("cuda:{}", rank);
  return refuse(
      fmt::format("{} is {}, and {} GPUs are visible; allowed: at most one rank for each GPU, or "
                  "one visible GPU for each rank",
                  started_by->rank, rank, count));
}

Result<int> ranks_on_host() {
  const Launcher* started_by = launcher();
  if (started_by == nullptr) return 1;
  for (const char* variable : started_by->counts) {
    const std::string_view text = text_of(variable);
    if (text.empty()) continue;
    const int count = number_of(first_count(text));
    if (count >= 1) return count;
    return refuse(fmt::format("{} is '{}'; allowed: the number of ranks on this host, from 1",
                              variable, text));
  }
  return 1;
}

Result<int> cores_of_rank() {
  auto ranks = ranks_on_host();
  if (!ranks) return ranks;
  const int own = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  // A launcher that runs on more cores than this rank has divided them already.
  const bool is_bound = cores_of_process(::getppid()) > cores_of_process(0);
  return is_bound ? own : std::max(1, own / *ranks);
}

std::optional<std::string> one_of_several() {
  const Launcher* started_by = launcher();
  if (started_by == nullptr) return std::nullopt;
  const bool is_slurm = std::string_view(started_by->rank) == "SLURM_LOCALID";
  if (is_slurm && text_of("SLURM_STEP_ID").empty()) return std::nullopt;
  for (const char* variable : started_by->counts) {
    if (number_of(first_count(text_of(variable))) == 1) return std::nullopt;
  }
  return fmt::format("{} is {}", started_by->rank, text_of(started_by->rank));
}

std::string name_of_step() {
  // A step of one task may be a shell, in which a person starts one run after another.
  if (number_of(text_of("SLURM_STEP_NUM_TASKS")) < 2) return {};
  const std::string_view job = text_of("SLURM_JOB_ID"), step = text_of("SLURM_STEP_ID");
  return job.empty() || step.empty() ? std::string() : fmt::format("slurm-{}.{}", job, step);
}

}  // namespace octile::tools
