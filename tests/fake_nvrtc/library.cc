// An NVRTC that misbehaves as its source asks: the first line is "// fake: <what>".
//
//   crash     raises SIGSEGV                 abort     calls abort()
//   overflow  fills the stack                exit      calls exit(4), as the real one on SIGINT
//   deep      takes 16 MiB of the stack
//   memory    allocates until it is refused, and aborts
//   endless   never returns                  killed    is killed, as by a system without memory
//   slow      returns after half a second    refuse    reports an error, with a log
//   pid       reports its process in an error's log
// A source that Octile emitted gives a cubin with its kernel and no code, within a millisecond. Any
// other gives a cubin that is none.
#include <nvrtc.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "cubin.h"

struct _nvrtcProgram {  // NOLINT(bugprone-reserved-identifier): nvrtc.h names it
  std::string source;
  std::string log;
  std::string cubin;
};

namespace {

// The array is volatile and used after the call, so that the recursion stays one.
int fill_the_stack(int depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(depth);
  return depth == 0 ? 0 : fill_the_stack(depth + 1) + page[0];
}

int take_stack(std::size_t bytes) {
  volatile char page[4096];
  page[0] = 1;
  return bytes < sizeof(page) ? page[0] : take_stack(bytes - sizeof(page)) + page[0];
}

void allocate_all() {
  constexpr std::size_t kBlock = std::size_t{16} << 20;
  while (void* block = std::malloc(kBlock)) std::memset(block, 1, kBlock);
  std::abort();
}

nvrtcResult refuse(nvrtcProgram program, std::string log) {
  program->log = std::move(log);
  return NVRTC_ERROR_COMPILATION;
}

nvrtcResult misbehave(nvrtcProgram program) {
  const std::string_view source = program->source;
  const auto asks_for = [&](std::string_view what) {
    return source.starts_with("// fake: " + std::string(what) + "\n");
  };
  if (asks_for("crash")) (void)std::raise(SIGSEGV);
  if (asks_for("abort")) std::abort();
  if (asks_for("overflow")) return static_cast<nvrtcResult>(fill_the_stack(1));
  if (asks_for("deep")) take_stack(std::size_t{16} << 20);
  if (asks_for("exit")) std::exit(4);  // NOLINT(concurrency-mt-unsafe): as the real one
  if (asks_for("memory")) allocate_all();
  if (asks_for("killed")) (void)std::raise(SIGKILL);
  while (asks_for("endless")) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (asks_for("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  if (asks_for("refuse")) return refuse(program, "line 1: error: refused");
  if (asks_for("pid")) return refuse(program, "pid " + std::to_string(::getpid()) + ".");
  return NVRTC_SUCCESS;
}

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "fake error"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char*, int,
                               const char* const*, const char* const*) {
  try {
    *program = new _nvrtcProgram{source, octile::fake_nvrtc::log_of(source),
                                 octile::fake_nvrtc::cubin_of(source)};
    return NVRTC_SUCCESS;
  } catch (const std::bad_alloc&) {  // tests refuse memory to this process
    return NVRTC_ERROR_OUT_OF_MEMORY;
  }
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  try {
    constexpr std::string_view kArchitecture = "--gpu-architecture=sm_";
    for (int i = 0; i < count; ++i) {
      const std::string_view option = options[i];
      if (!option.starts_with(kArchitecture)) continue;
      const std::string number(option.substr(kArchitecture.size()));
      octile::fake_nvrtc::set_architecture(program->cubin,
                                           static_cast<std::uint32_t>(std::atoi(number.c_str())));
    }
    return misbehave(program);
  } catch (const std::bad_alloc&) {
    return NVRTC_ERROR_OUT_OF_MEMORY;
  }
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* size) {
  *size = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  *size = program->cubin.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  std::memcpy(cubin, program->cubin.data(), program->cubin.size());
  return NVRTC_SUCCESS;
}
}
