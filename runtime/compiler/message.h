// Messages between the library and octile-compiler, over a stream socket.
//
//   message: u32 bytes of the rest, then fields
//   field:   u32 bytes, then the bytes
//
// Numbers are in the machine's byte order, because both ends run on one machine. A message has at
// most kMostFields fields and kMostMessageBytes bytes. The library sends requests; what the program
// answers:
//
//   hello     "octile-compiler", version of Octile, path, builtins path, major, minor, files of
//             NVRTC
//   question  "ready?"
//   answer    "ready"
//   request   "compile", name, source, options...
//   beat      "working": at once, and then every second until the answer
//   answer    "cubin", milliseconds, log, cubin
//   refusal   "error", error code, sentence: instead of a hello or of an answer. A program
//             without an NVRTC sends NO_COMPILER
//   end       "ended", signal or 0 for exit(), KiB in use: by a program that NVRTC is ending, at
//             any time
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/descriptor.h"

namespace octile {

// The program's argument is "<bytes of data allowed, or 0>:<NVRTC to open, or nothing>". A process
// with more rights than its caller has this before the colon, and the program counts as one too.
constexpr std::string_view kMoreRights = "+";

constexpr std::string_view kAsksIfReady = "ready?";
constexpr std::string_view kIsReady = "ready";
constexpr std::string_view kWorks = "working";

constexpr std::size_t kMostMessageBytes = std::size_t{64} << 20;
constexpr std::size_t kMostFields = 256;

// One end of a socket.
class Channel {
 public:
  using Clock = std::chrono::steady_clock;
  using Message = std::vector<std::string>;
  enum class Trouble {
    kClosed,   // the other end is gone
    kTooLate,  // the deadline passed
    kNonsense  // the bytes are not a message
  };

  explicit Channel(cache::Descriptor descriptor);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Both return nothing on success. A signal does not interrupt them.
  std::optional<Trouble> send(const Message& message, Clock::time_point deadline);
  std::optional<Trouble> receive(Message& message, Clock::time_point deadline);

  // Returns true if the other end is gone or something unexpected has come.
  bool is_broken() const;

 private:
  std::optional<Trouble> wait_for(short events, Clock::time_point deadline) const;
  std::optional<Trouble> receive_bytes(char* to, std::size_t bytes, Clock::time_point deadline);

  const cache::Descriptor descriptor_;
};

}  // namespace octile
