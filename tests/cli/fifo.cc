#include "tests/cli/fifo.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace octile::tests {

Fifo::Fifo(const std::filesystem::path& path, std::string bytes) : path_(path.string()) {
  if (::mkfifo(path_.c_str(), 0600) != 0) throw std::runtime_error("mkfifo failed");
  writer_ = std::thread([path = path_, bytes = std::move(bytes)] {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);  // of a reader that ends early
    (void)::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    std::ofstream(path, std::ios::binary) << bytes;
  });
}

Fifo::~Fifo() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  writer_.join();
  ::close(fd);
  ::unlink(path_.c_str());
}

}  // namespace octile::tests
