#include "cache/descriptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <mutex>

namespace octile::cache {
namespace {

// More than a process may have by the kernel's default (fs.nr_open). Pages that no number falls
// into are never touched.
constexpr int kMostNumbers = 1 << 20;
constexpr int kBitsOfWord = 64;
constexpr timespec kForkWait{0, 50'000};

class NumberSet {
 public:
  bool contains(int number) const {
    return is_number(number) && (word(number).load() & bit(number)) != 0;
  }
  void add(int number) {
    word(number).fetch_or(bit(number));
    int seen = words_used_.load();
    const int used = number / kBitsOfWord + 1;
    while (seen < used && !words_used_.compare_exchange_weak(seen, used)) {
    }
  }
  // Returns true if the number was there.
  bool remove(int number) {
    return is_number(number) && (word(number).fetch_and(~bit(number)) & bit(number)) != 0;
  }
  // Removes all and calls `with` with each.
  template <typename With>
  void remove_all(With with) {
    for (int index = 0; index < words_used_.load(); ++index) {
      const std::uint64_t there = words_[static_cast<std::size_t>(index)].exchange(0);
      for (int i = 0; i < kBitsOfWord; ++i)
        if ((there >> i & 1U) != 0) with(index * kBitsOfWord + i);
    }
  }
  static bool is_number(int number) { return number >= 0 && number < kMostNumbers; }

 private:
  static std::uint64_t bit(int number) { return std::uint64_t{1} << (number % kBitsOfWord); }
  std::atomic<std::uint64_t>& word(int number) {
    return words_[static_cast<std::size_t>(number / kBitsOfWord)];
  }
  const std::atomic<std::uint64_t>& word(int number) const {
    return words_[static_cast<std::size_t>(number / kBitsOfWord)];
  }

  std::array<std::atomic<std::uint64_t>, kMostNumbers / kBitsOfWord> words_{};
  std::atomic<int> words_used_ = 0;
};

constinit NumberSet own_numbers;
constinit NumberSet locked_numbers;
constinit std::mutex fork_gate;  // held across every fork
constinit std::atomic<int> working = 0;

// The numbers 0 to 2 that are held, for how many StandardNumbers.
struct HeldNumbers {
  std::mutex mutex;  // for moments, and across every fork
  int users = 0;
  std::array<bool, 3> is_held{};

  // An epoll descriptor needs no file system and takes no text that the host prints meanwhile.
  void hold_free_ones() {
    for (int free = 0; free <= STDERR_FILENO; ++free) {
      if (::fcntl(free, F_GETFD) >= 0) continue;
      const int number = ::epoll_create1(EPOLL_CLOEXEC);
      if (number > STDERR_FILENO) ::close(number);
      if (number >= 0 && number <= STDERR_FILENO) is_held[static_cast<std::size_t>(number)] = true;
    }
  }
  void free_all() {
    for (std::size_t number = 0; number < is_held.size(); ++number)
      if (std::exchange(is_held[number], false)) ::close(static_cast<int>(number));
  }
};
constinit HeldNumbers standard;

int close_ours(int number) {
  if (!own_numbers.remove(number)) return -EBADF;
  if (locked_numbers.remove(number)) ::flock(number, LOCK_UN);
  return ::close(number) < 0 ? -errno : 0;
}

}  // namespace

WithoutFork::WithoutFork() {
  const std::scoped_lock lock(fork_gate);
  ++working;
}
WithoutFork::~WithoutFork() { --working; }

StandardNumbers::StandardNumbers() {
  const std::scoped_lock lock(standard.mutex);
  ++standard.users;
  standard.hold_free_ones();
}
StandardNumbers::~StandardNumbers() {
  const std::scoped_lock lock(standard.mutex);
  if (--standard.users == 0) standard.free_all();
}

int take_descriptor(int number) {
  if (number <= STDERR_FILENO) {
    const int above = ::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int code = errno;
    ::close(number);
    if (above < 0) return -code;
    number = above;
  }
  if (!NumberSet::is_number(number)) {
    ::close(number);
    return -EMFILE;
  }
  own_numbers.add(number);
  return number;
}

std::pair<int, int> new_socket_pair() {
  const WithoutFork none_meanwhile;
  const StandardNumbers held;
  std::array<int, 2> made{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, made.data()) != 0) return {-errno, -1};
  const int first = take_descriptor(made[0]);
  const int second = take_descriptor(made[1]);
  if (first >= 0 && second >= 0) return {first, second};
  close_ours(first);
  close_ours(second);
  return {first < 0 ? first : second, -1};
}

void note_lock(int number) {
  if (own_numbers.contains(number)) locked_numbers.add(number);
}

int close_descriptor(int number) {
  const WithoutFork none_meanwhile;
  return close_ours(number);
}

void forget_descriptor(int number, const WithoutFork&) {
  locked_numbers.remove(number);
  own_numbers.remove(number);
}

Descriptor::Descriptor(int number) noexcept : number_(number) {
  if (NumberSet::is_number(number)) own_numbers.add(number);
}
int Descriptor::get() const { return own_numbers.contains(number_) ? number_ : -1; }

// Whoever holds the gate only counts.
void hold_descriptors_for_fork(std::chrono::steady_clock::time_point end) {
  fork_gate.lock();
  while (working.load() != 0 && std::chrono::steady_clock::now() < end)
    ::nanosleep(&kForkWait, nullptr);
  standard.mutex.lock();
}
void release_descriptors_after_fork() {
  standard.mutex.unlock();
  fork_gate.unlock();
}

void close_descriptors_of_the_parent() {
  working = 0;
  locked_numbers.remove_all([](int) {});  // the parent unlocks its files
  own_numbers.remove_all([](int number) { ::close(number); });
  standard.users = 0;
  standard.free_all();
  standard.mutex.unlock();
  fork_gate.unlock();
}

}  // namespace octile::cache
