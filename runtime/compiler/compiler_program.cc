#include "runtime/compiler/compiler_program.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <utility>

#include "runtime/compiler/messages.h"
#include "runtime/process/worker_program.h"

namespace octile {
namespace {

using Trouble = Channel::Trouble;

constexpr std::string_view kEnded = "ended";  // the message of a program that ends
constexpr const char* kEndedEarly = "ended before it said that it runs";

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Returns the error of an "error" message.
std::optional<Error> error_of(const Channel::Message& message) {
  if (message.size() != 3 || message[0] != "error") return std::nullopt;
  const auto code = number<int>(message[1]);
  if (!code || *code < static_cast<int>(ErrorCode::kInvalidArgument) ||
      *code > static_cast<int>(ErrorCode::kFile))
    return std::nullopt;
  return Error{static_cast<ErrorCode>(*code), message[2]};
}

std::string signal_text(int signal) {
  const char* description = sigdescr_np(signal);
  return fmt::format("signal {} ({})", signal, description != nullptr ? description : "unknown");
}

// Returns the sentence on a program that NVRTC ended.
std::string ended_sentence(const std::string& name, const Channel::Message& message,
                           const CompileLimits& limits) {
  const bool complete = message.size() == 3;
  const int signal = complete ? number<int>(message[1]).value_or(0) : 0;
  const std::int64_t kib = complete ? number<std::int64_t>(message[2]).value_or(0) : 0;
  constexpr std::int64_t kKibPerMib = 1024;
  return fmt::format(
      "NVRTC ended its process {} while it compiled {}; it had taken {} MiB of memory{}",
      signal == 0 ? "by exit()" : "by " + signal_text(signal), name, kib / kKibPerMib,
      limits.memory_bytes > 0 ? fmt::format(" of the {} MiB allowed", limits.memory_bytes >> 20)
                              : "");
}

std::string no_answer_sentence(const std::string& name) {
  return fmt::format("{} sent bytes that are not an answer to the request to compile {}",
                     kCompilerName, name);
}

}  // namespace

CompilerProgram::CompilerProgram(StartedProgram started, const CompileLimits& limits)
    : process_(std::move(started.process)), channel_(std::move(started.socket)), limits_(limits) {}

tl::expected<std::unique_ptr<CompilerProgram>, CompilerProgram::Failure> CompilerProgram::start(
    const std::string& program, const std::string& nvrtc, const CompileLimits& limits) {
  const auto refuse = [&](std::string why) {
    return tl::unexpected<Failure>(
        {.error = {ErrorCode::kNoCompiler, fmt::format("\"{}\" {}", program, why)}});
  };
  auto process = start_program(program, fmt::format("{}:{}", limits.memory_bytes, nvrtc));
  if (!process)
    return tl::unexpected<Failure>({.error = {ErrorCode::kNoCompiler, process.error()}});
  std::unique_ptr<CompilerProgram> started(new CompilerProgram(std::move(*process), limits));
  Channel::Message hello;
  const auto trouble =
      started->channel_.receive(hello, Channel::Clock::now() + limits.time_to_start);
  if (trouble == Trouble::kTooLate) {
    auto silent = refuse(fmt::format("does not say within {} s that it runs",
                                     std::chrono::duration<double>(limits.time_to_start).count()));
    silent.value().silent = true;
    return silent;
  }
  if (trouble)
    return refuse(*trouble == Trouble::kClosed ? kEndedEarly : "is not Octile's compiler");
  if (auto error = error_of(hello)) {
    if (error->code != ErrorCode::kNoCompiler) return refuse(std::move(error->message));
    return tl::unexpected<Failure>({.error = std::move(*error), .nvrtc_missing = true});
  }
  if (!hello.empty() && hello[0] == kEnded) return refuse(kEndedEarly);
  constexpr std::size_t kFields = 7;
  if (hello.size() != kFields || hello[0] != kCompilerName)
    return refuse("is not Octile's compiler");
  if (hello[1] != own_version())
    return refuse(fmt::format("is of Octile {} and not of {}", hello[1], own_version()));
  started->identity_ = {hello[2], hello[3], number<int>(hello[4]).value_or(0),
                        number<int>(hello[5]).value_or(0), hello[6]};
  return started;
}

bool CompilerProgram::is_ready() {
  if (channel_.is_broken()) return false;
  const auto deadline = Channel::Clock::now() + limits_.time_to_answer;
  Channel::Message answer;
  return !channel_.send({std::string(kAsksIfReady)}, deadline) &&
         !channel_.receive(answer, deadline) && answer == Channel::Message{std::string(kIsReady)};
}

CompilerProgram::Answer CompilerProgram::compile(const std::string& name, const std::string& source,
                                                 std::span<const std::string> options) {
  const auto failed = [](std::string sentence, bool silent = false) {
    return Answer{fail(ErrorCode::kCompileFailed, std::move(sentence)), false, silent, false};
  };
  Channel::Message request{"compile", name, source};
  request.insert(request.end(), options.begin(), options.end());
  const auto deadline = Channel::Clock::now() + limits_.time;
  Channel::Message answer;
  auto trouble = channel_.send(request, deadline);
  if (trouble == Trouble::kNonsense)
    return failed(
        fmt::format("the source of {} has {} bytes and {} options; allowed: {} bytes and "
                    "{} options together",
                    name, source.size(), options.size(), kMostMessageBytes, kMostFields - 3));
  if (!trouble || *trouble == Trouble::kClosed) {
    do {
      const auto beat = Channel::Clock::now() + limits_.time_of_silence;
      trouble = channel_.receive(answer, std::min(beat, deadline));
    } while (!trouble && answer == Channel::Message{std::string(kWorks)});
  }
  if (trouble) {
    const double seconds = std::chrono::duration<double>(limits_.time).count();
    switch (*trouble) {
      case Trouble::kTooLate:
        if (Channel::Clock::now() < deadline) {
          auto stalled = failed(
              fmt::format("{} said nothing for {} s while it compiled {}", kCompilerName,
                          std::chrono::duration<double>(limits_.time_of_silence).count(), name));
          stalled.stalled = true;
          return stalled;
        }
        return failed(
            fmt::format("NVRTC did not end within {} s while it compiled {}, and was "
                        "stopped",
                        seconds, name));
      case Trouble::kNonsense:
        return failed(no_answer_sentence(name));
      case Trouble::kClosed:
        return failed(fmt::format("the compiler's process was killed while it compiled {}; the "
                                  "system does so if memory runs out",
                                  name),
                      true);
    }
  }
  if (!answer.empty() && answer[0] == kEnded) return failed(ended_sentence(name, answer, limits_));
  if (auto error = error_of(answer)) {
    // The process has the host's memory only up to its bound, so the host is not out of memory.
    if (error->code == ErrorCode::kOutOfMemory) error->code = ErrorCode::kCompileFailed;
    return {tl::unexpected<Error>(std::move(*error)), true, false, false};
  }
  const auto milliseconds = answer.size() == 4 ? number<double>(answer[1]) : std::nullopt;
  if (answer.size() != 4 || answer[0] != "cubin" || !milliseconds)
    return failed(no_answer_sentence(name));
  return {CubinAndLog{.cubin = {answer[3].begin(), answer[3].end()},
                      .log = std::move(answer[2]),
                      .compile_ms = *milliseconds},
          true, false, false};
}

}  // namespace octile
