// The descriptors that the library opens. Each is above 2, so that nothing that the host prints can
// reach one after the host closed its own. None is inherited by a program. A child of fork closes
// its copies before fork returns there, so that no lock and no connection lives on in it.
//
// All are made and closed here. A test of the source tree refuses it elsewhere. Descriptors that
// other libraries of the process open are not among them.
#pragma once

#include <cerrno>
#include <chrono>
#include <utility>

namespace octile::cache {

// No fork happens while one exists, unless the work lasts for longer than a fork waits: so a file
// server that does not answer holds no fork up for longer. Such a fork's child keeps a copy.
class WithoutFork {
 public:
  WithoutFork();
  ~WithoutFork();
  WithoutFork(const WithoutFork&) = delete;
  WithoutFork& operator=(const WithoutFork&) = delete;
};

// Holds those of the numbers 0 to 2 that are free, as long as one exists in any thread: no thread
// frees a number while another may be given it.
class StandardNumbers {
 public:
  StandardNumbers();
  ~StandardNumbers();
  StandardNumbers(const StandardNumbers&) = delete;
  StandardNumbers& operator=(const StandardNumbers&) = delete;
};

// Takes over a descriptor that was made since a WithoutFork exists. Returns it, moved above 2 if it
// is not there, or -errno.
int take_descriptor(int number);

// Returns what open() returns, a new descriptor that is close-on-exec, moved above 2 if need be; or
// -errno. `open` reports errors in errno.
template <typename Open>
int new_descriptor(Open open) {
  const WithoutFork none_meanwhile;
  const StandardNumbers held;
  const int number = open();
  return number < 0 ? -errno : take_descriptor(number);
}

// Returns two connected stream sockets, or the first as -errno.
std::pair<int, int> new_socket_pair();

// Notes that the descriptor's file is locked. Closing it unlocks the file first, because a copy of
// the descriptor in another process would keep the lock.
void note_lock(int number);

// Closes a descriptor that was made here. Returns 0 or -errno; -EBADF if it is none, as in the
// child of a fork, where all are closed already.
int close_descriptor(int number);

// Forgets a descriptor, which somebody else closes before `none_meanwhile` ends.
void forget_descriptor(int number, const WithoutFork& none_meanwhile);

// A descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  // Takes it over, wherever it was made. Its number stays.
  explicit Descriptor(int number) noexcept;
  ~Descriptor() { close_descriptor(number_); }
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const;  // -1 in the child of a fork
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// The handlers of fork call these. They use only system calls and memory that exists.
// The first waits until `end` at the most.
void hold_descriptors_for_fork(std::chrono::steady_clock::time_point end);
void release_descriptors_after_fork();
void close_descriptors_of_the_parent();  // in the child, instead

}  // namespace octile::cache
