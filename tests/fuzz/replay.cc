// Runs a fuzzer's function on the seeds of its folder: whole, cut, and with bytes changed. So every
// build has the fuzzers' functions and their seeds, with any compiler.
//
//     replay FOLDER
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kCuts = 32;
constexpr int kChanges = 128;

std::uint64_t next(std::uint64_t& state) {  // xorshift64
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

void run(std::span<const std::uint8_t> input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void replay(std::vector<std::uint8_t> seed) {
  run(seed);
  if (seed.empty()) return;
  for (std::size_t cut = 0; cut < kCuts; ++cut)
    run(std::span(seed).first(seed.size() * cut / kCuts));
  std::uint64_t state = seed.size();
  for (int change = 0; change < kChanges; ++change) {
    std::uint8_t& byte = seed[next(state) % seed.size()];
    const std::uint8_t before = byte;
    byte = static_cast<std::uint8_t>(next(state));
    run(seed);
    byte = before;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  int seeds = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    replay({std::istreambuf_iterator<char>(file), {}});
    ++seeds;
  }
  fmt::print("{} seeds\n", seeds);
  return seeds > 0 ? 0 : 1;
}
