// Messages between the library and a program that it started, over a stream socket.
//
//   message: u32 bytes of the rest, then fields
//   field:   u32 bytes, then the bytes
//
// Numbers are in the machine's byte order, because both ends run on one machine. A message has at
// most kMostFields fields and kMostMessageBytes bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/descriptor.h"

namespace octile {

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
