#include "runtime/process/message.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace octile {
namespace {

using Trouble = Channel::Trouble;

void append_size(std::string& to, std::size_t size) {
  const auto word = static_cast<std::uint32_t>(size);
  to.append(reinterpret_cast<const char*>(&word), sizeof(word));
}

// Takes a size from the front of the bytes, or returns nothing if they are too few.
std::optional<std::size_t> take_size(std::string_view& bytes) {
  std::uint32_t word = 0;
  if (bytes.size() < sizeof(word)) return std::nullopt;
  std::memcpy(&word, bytes.data(), sizeof(word));
  bytes.remove_prefix(sizeof(word));
  return word;
}

bool split(std::string_view bytes, Channel::Message& fields) {
  fields.clear();
  while (!bytes.empty()) {
    const auto size = take_size(bytes);
    if (!size || *size > bytes.size() || fields.size() == kMostFields) return false;
    fields.emplace_back(bytes.substr(0, *size));
    bytes.remove_prefix(*size);
  }
  return true;
}

}  // namespace

Channel::Channel(cache::Descriptor descriptor) : descriptor_(std::move(descriptor)) {}

// Shutting down ends the connection also if something else has a copy of the descriptor.
Channel::~Channel() { ::shutdown(descriptor_.get(), SHUT_RDWR); }

std::optional<Trouble> Channel::send(const Message& message, Clock::time_point deadline) {
  std::string bytes(sizeof(std::uint32_t), '\0');
  for (const std::string& field : message) {
    append_size(bytes, field.size());
    bytes += field;
  }
  const std::size_t payload = bytes.size() - sizeof(std::uint32_t);
  if (payload > kMostMessageBytes || message.size() > kMostFields) return Trouble::kNonsense;
  const auto word = static_cast<std::uint32_t>(payload);
  std::memcpy(bytes.data(), &word, sizeof(word));

  std::string_view rest = bytes;
  while (!rest.empty()) {
    if (const auto trouble = wait_for(POLLOUT, deadline)) return trouble;
    const ssize_t sent =
        ::send(descriptor_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR && errno != EAGAIN) {
      return Trouble::kClosed;
    }
  }
  return std::nullopt;
}

std::optional<Trouble> Channel::receive(Message& message, Clock::time_point deadline) {
  std::uint32_t payload = 0;
  if (const auto trouble =
          receive_bytes(reinterpret_cast<char*>(&payload), sizeof(payload), deadline))
    return trouble;
  if (payload > kMostMessageBytes) return Trouble::kNonsense;
  std::string bytes(payload, '\0');
  if (const auto trouble = receive_bytes(bytes.data(), bytes.size(), deadline)) return trouble;
  return split(bytes, message) ? std::nullopt : std::optional(Trouble::kNonsense);
}

bool Channel::is_broken() const {
  pollfd one{descriptor_.get(), POLLIN | POLLRDHUP, 0};
  return ::poll(&one, 1, 0) != 0;
}

std::optional<Trouble> Channel::wait_for(short events, Clock::time_point deadline) const {
  for (;;) {
    // A message that is there by the deadline is in time, also if this process was stopped.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd one{descriptor_.get(), events, 0};
    const std::int64_t most = std::numeric_limits<int>::max();
    const int ready = ::poll(&one, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, most)));
    if (ready > 0) return std::nullopt;
    if (ready == 0 && left <= 0) return Trouble::kTooLate;
    if (ready < 0 && errno != EINTR && errno != EAGAIN) return Trouble::kClosed;
  }
}

std::optional<Trouble> Channel::receive_bytes(char* to, std::size_t bytes,
                                              Clock::time_point deadline) {
  while (bytes > 0) {
    if (const auto trouble = wait_for(POLLIN, deadline)) return trouble;
    const ssize_t got = ::recv(descriptor_.get(), to, bytes, MSG_DONTWAIT);
    if (got == 0) return Trouble::kClosed;
    if (got > 0) {
      to += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (errno != EINTR && errno != EAGAIN) {
      return Trouble::kClosed;
    }
  }
  return std::nullopt;
}

}  // namespace octile
