// A process of a soak: it makes library handles on one shared cache, prepares kernels, quantises on
// the host device, evicts entries, forks, and kills other workers, while files, memory or threads
// are refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/key.h"
#include "tests/soak/tally.h"

namespace octile::soak {

struct Setup {
  std::string root;
  std::vector<std::string> problems;     // each has one kernel, and no two have the same
  std::vector<unsigned char> quantised;  // what the host device makes of the soak's tensor
  std::size_t workers = 4;
};

// Returns problems that have different kernels.
std::vector<std::string> soak_problems();

// Quantises the soak's tensor on the host device. Returns the codes and scales; empty if a call
// failed, which `status` then has.
std::vector<unsigned char> quantise_on_the_host(int* status);

// Does rounds until it has done its share or is told to stop. Returns the process's exit status.
int run_worker(const Setup& setup, Tally& tally, std::size_t slot, std::uint64_t seed);

// Prepares every problem once without faults. Returns how many kernels were compiled, or -1 after a
// violation.
int prepare_all(const Setup& setup, Tally& tally);

// Returns true if the cubin is the fake NVRTC's for the source.
bool is_cubin_of(const std::vector<std::uint8_t>& cubin, const cache::Identity& identity);

}  // namespace octile::soak
