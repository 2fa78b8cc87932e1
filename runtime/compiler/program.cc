// octile-compiler: NVRTC in a process of its own, for CompilerPool. Descriptor 0 is a socket to the
// library, and the argument has its limits (messages.h).
//
// The process ends when the socket does, also in the middle of a compile, and when it has had
// nothing to do for a minute (run_worker_program()).
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>

#include "runtime/compiler/messages.h"
#include "runtime/compiler/nvrtc.h"
#include "runtime/process/worker_program.h"

namespace octile {
namespace {

constexpr std::chrono::milliseconds kBeat{1000};

void limit_memory(std::int64_t bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes
  if (bytes <= 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, static_cast<rlim_t>(bytes));
  ::setrlimit(RLIMIT_DATA, &limit);
#else
  static_cast<void>(bytes);
#endif
}

// ---- what NVRTC does to the process

// Tells the library that the process ends. Makes system calls only: a signal handler calls it.
void tell_end(int signal) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  // "ended", the signal and the KiB in use as a message; a number has at most 20 digits.
  struct Text {
    std::array<char, 128> bytes{};
    std::size_t size = sizeof(std::uint32_t);
    void add(std::string_view field) {
      const auto length = static_cast<std::uint32_t>(field.size());
      std::memcpy(bytes.data() + size, &length, sizeof(length));
      std::memcpy(bytes.data() + size + sizeof(length), field.data(), field.size());
      size += sizeof(length) + field.size();
    }
    void add(long number) {
      std::array<char, 24> digits{};
      const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
      add(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
    }
  } text;
  text.add("ended");
  text.add(signal);
  text.add(usage.ru_maxrss);
  const auto payload = static_cast<std::uint32_t>(text.size - sizeof(std::uint32_t));
  std::memcpy(text.bytes.data(), &payload, sizeof(payload));
  static_cast<void>(
      ::send(STDIN_FILENO, text.bytes.data(), text.size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

void on_fatal(int signal) {
  tell_end(signal);
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

void on_exit_by_nvrtc() { tell_end(0); }

// For the calling thread, which is the one that compiles.
void watch_for_the_end() {
  // A stack of its own, because a stack that overflowed has no room for a handler.
  static std::array<char, std::size_t{64} << 10> stack;
  stack_t alternate{};
  alternate.ss_sp = stack.data();
  alternate.ss_size = stack.size();
  sigaltstack(&alternate, nullptr);
  struct sigaction fatal{};
  fatal.sa_handler = on_fatal;
  fatal.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGXCPU})
    sigaction(signal, &fatal, nullptr);
  (void)std::atexit(on_exit_by_nvrtc);
}

// The state that the two threads share: one compiles, the other says meanwhile that the process
// works.
class Line {
 public:
  void open(Channel& channel) {
    const std::scoped_lock lock(mutex_);
    channel_ = &channel;
  }

  // Returns false if the library is gone.
  bool send(const Channel::Message& message) {
    const std::scoped_lock lock(mutex_);
    works_ = false;
    return !channel_->send(message, Channel::Clock::now() + kTimeToAnswer);
  }
  bool receive(Channel::Message& message) {
    return !channel_->receive(message, Channel::Clock::now() + kTimeToAsk);
  }
  void begin_work() {
    const std::scoped_lock lock(mutex_);
    works_ = true;
    beat();
  }
  void tell_that_it_works() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && works_) beat();
  }

 private:
  // A socket that is full has unread beats. A beat is sent whole or not at all.
  void beat() {
    static_cast<void>(channel_->send({std::string(kWorks)}, Channel::Clock::now() + kBeat));
  }

  std::mutex mutex_;
  Channel* channel_ = nullptr;  // a thread sends with the mutex; one alone receives
  bool works_ = false;
};

// ---- compiling

Channel::Message error_message(const Error& error) {
  return {"error", fmt::format("{}", static_cast<int>(error.code)), error.message};
}

Channel::Message hello(const Nvrtc& nvrtc) {
  const NvrtcIdentity& identity = nvrtc.identity();
  return {std::string(kCompilerName),
          own_version(),
          identity.path,
          identity.builtins_path,
          fmt::format("{}", identity.major),
          fmt::format("{}", identity.minor),
          identity.files};
}

Channel::Message answer(const Nvrtc& nvrtc, const Channel::Message& request) {
  constexpr std::size_t kBeforeOptions = 3;
  if (request.size() == 1 && request[0] == kAsksIfReady) return {std::string(kIsReady)};
  if (request.size() < kBeforeOptions || request[0] != "compile")
    return error_message({ErrorCode::kInternal, "octile-compiler was asked for something else"});
  const auto compiled =
      nvrtc.compile_to_cubin(request[1], request[2], std::span(request).subspan(kBeforeOptions));
  if (!compiled) return error_message(compiled.error());
  return {"cubin", fmt::format("{}", compiled->compile_ms), compiled->log,
          std::string(compiled->cubin.begin(), compiled->cubin.end())};
}

void serve(Line& line, const std::string& library) {
  watch_for_the_end();
  const auto nvrtc = library.empty() ? Nvrtc::open() : Nvrtc::open(library);
  if (!nvrtc) {
    line.send(error_message(nvrtc.error()));
    return;
  }
  ::chdir("/");  // the host's folder may be removed or unmounted
  if (!line.send(hello(**nvrtc))) return;
  for (;;) {
    Channel::Message request;
    if (!line.receive(request)) return;
    if (request.size() > 1) line.begin_work();
    if (!line.send(answer(**nvrtc, request))) return;
  }
}

// "<bytes of memory>:<path of NVRTC, or nothing>"
struct Argument {
  std::int64_t bytes = 0;
  std::string library;

  bool read(std::string_view text) {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) return false;
    const std::string number(text.substr(0, colon));
    library = text.substr(colon + 1);
    const char* const end = number.data() + number.size();
    return std::from_chars(number.data(), end, bytes).ptr == end;
  }
};

}  // namespace
}  // namespace octile

int main(int argc, char** argv) {
  using namespace octile;
  Argument argument;
  Line line;
  return run_worker_program(
      argc, argv,
      {.name = kCompilerName,
       .purpose = "to compile its kernels",
       .stack_bytes = kStackBytesOfNvrtc,
       .read = [&](std::string_view text) { return argument.read(text); },
       .serve =
           [&](Channel& channel) {
             line.open(channel);
             limit_memory(argument.bytes);
             serve(line, argument.library);
           },
       .beat = [&] { line.tell_that_it_works(); },
       .refusal =
           [](const std::string& why) { return error_message({ErrorCode::kOutOfMemory, why}); }});
}
