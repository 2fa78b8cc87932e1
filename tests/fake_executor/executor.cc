// Carries out launches of the fake driver in octile-prover, and misbehaves if asked.
//
//   FAKE_CUDA_FAULT=<what>:<part of a kernel's name>: its launch
//     hang     does not end
//     fault    breaks the context: this and every later synchronisation fails
//     exit     ends the process
//     kill     ends it by a signal
//     stop     stops it, as SIGSTOP does
//     refuse   is refused, and the context serves
//     slow     takes a fifth of a second
//     wrong    changes an element of D, or a code
//     scale    changes a scale of FP8 D
//     beyond   writes behind D, or behind the codes
//   FAKE_CUDA_FAULT_ONCE=<file>: one launch alone does so; the file is made then
//   FAKE_CUDA_FAULT=memory: memory is refused; context: a context is; load, image: every cubin is,
//   for a reason that is not its own, or for one that is
//   FAKE_CUDA_SUM_BITS=<n>: the bits of the sums D[62][63] and D[63][63], which the probes of the
//   known-answer tests read
//   FAKE_CUDA_LAUNCHES=<file>: a line for each launch: kernel, cluster, programmatic
#include <dlfcn.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill() is not in <csignal>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "tests/support/fake_execution.h"

namespace octile::test {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// Has the fake driver refuse every call of a function from now on.
void refuse(const char* function, CUresult result) {
  void* fake = dlopen(OCTILE_FAKE_DRIVER_PATH, RTLD_NOW | RTLD_NOLOAD);
  reinterpret_cast<decltype(&fake_cuda_fail)>(dlsym(fake, "fake_cuda_fail"))(function, result, 0);
}

void misbehave(std::string_view what, const fake_cuda_launch& launch) {
  const bool is_gemm = std::string_view(launch.kernel).starts_with("octile_gemm");
  if (what == "exit") ::_exit(3);
  if (what == "kill") ::kill(::getpid(), SIGKILL);
  if (what == "stop") ::kill(::getpid(), SIGSTOP);
  if (what == "hang" || what == "stop") std::this_thread::sleep_for(std::chrono::hours(1));
  if (what == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (what == "fault") {
    for (const char* function : {"cuStreamSynchronize", "cuCtxSynchronize"})
      refuse(function, CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  if (is_gemm) {
    const GemmKernelArgs args = gemm_args(launch);
    const bool has_16_bits = size_of(gemm_problem(launch.kernel, args).d.dtype) == 2;
    auto* d = static_cast<float*>(args.d);
    auto* codes = static_cast<std::uint8_t*>(args.d);
    if (what == "wrong" && args.d_scale != nullptr) {
      codes[5 * args.ldd + 7] ^= 1;
    } else if (what == "wrong" && has_16_bits) {
      static_cast<std::uint16_t*>(args.d)[5 * args.ldd + 7] ^= 1;
    } else if (what == "wrong") {
      d[5 * args.ldd + 7] += 1;
    }
    if (what == "scale") args.d_scale[5] *= 2;
    if (what == "beyond") d[args.m * args.ldd + 3] = 1;
  } else {
    const auto args = parameter<QuantizeKernelArgs>(launch, 0);
    auto* q = static_cast<std::uint8_t*>(args.q != nullptr ? args.q : args.q_transposed);
    if (what == "wrong") q[3] ^= 1;
    if (what == "beyond") q[args.rows * args.ldq + 3] ^= 1;
  }
}

// The second products of the probes, of which a unit of fewer bits loses one or both.
void keep_bits(const fake_cuda_launch& launch, int bits) {
  constexpr std::int64_t kProbedRows[] = {62, 63};
  const GemmKernelArgs args = gemm_args(launch);
  for (const std::int64_t row : kProbedRows) {
    float& probed = static_cast<float*>(args.d)[row * args.ldd + 63];
    probed = std::bit_cast<float>(std::bit_cast<std::uint32_t>(probed) &
                                  ~std::uint32_t{0} << (bits < 23 ? 23 - bits : 0));
  }
}

// Returns false if one alone misbehaves and has done so. Otherwise this one does.
bool is_on() {
  const std::string once = variable("FAKE_CUDA_FAULT_ONCE");
  if (once.empty()) return true;
  if (std::ifstream(once).good()) return false;
  std::ofstream(once) << "\n";
  return true;
}

// Whether a kernel was launched before in a program that times its kernels: each of them computes
// once there. octile-prover repeats them.
bool is_repeated(const char* kernel) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  if (std::string_view(program_invocation_short_name) == "octile-prover") return false;
  const std::scoped_lock lock(mutex);
  return !seen.insert(kernel).second;
}

// Refusals that come before the first launch.
[[maybe_unused]] const bool refused_at_load = [] {
  const std::string fault = variable("FAKE_CUDA_FAULT");
  if (fault.empty() || fault.find(':') != std::string::npos || !is_on()) return true;
  if (fault == "memory") refuse("cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
  if (fault == "context") refuse("cuDevicePrimaryCtxRetain", CUDA_ERROR_DEVICE_UNAVAILABLE);
  if (fault == "load") refuse("cuLibraryLoadData", CUDA_ERROR_INVALID_VALUE);
  if (fault == "image") refuse("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE);
  return true;
}();

}  // namespace
}  // namespace octile::test

extern "C" __attribute__((visibility("default"))) CUresult
fake_cuda_execute(const fake_cuda_launch* launch, void* user) {
  using namespace octile::test;  // NOLINT(google-build-using-namespace)
  if (const std::string log = variable("FAKE_CUDA_LAUNCHES"); !log.empty())
    std::ofstream(log, std::ios::app)
        << launch->kernel << " " << launch->cluster[0] << " " << launch->programmatic << "\n";
  if (is_repeated(launch->kernel)) return CUDA_SUCCESS;
  const CUresult result = execute(launch, user);
  const std::string fault = variable("FAKE_CUDA_FAULT");
  const std::size_t colon = fault.find(':');
  const std::string_view kernel = launch->kernel;
  if (kernel.starts_with("octile_gemm"))
    if (const std::string bits = variable("FAKE_CUDA_SUM_BITS"); !bits.empty())
      keep_bits(*launch, std::atoi(bits.c_str()));
  if (colon == std::string::npos ||
      kernel.find(fault.substr(colon + 1)) == std::string_view::npos || !is_on())
    return result;
  if (fault.starts_with("refuse:")) return CUDA_ERROR_INVALID_VALUE;
  misbehave(fault.substr(0, colon), *launch);
  return result;
}
