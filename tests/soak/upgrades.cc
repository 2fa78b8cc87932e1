#include "tests/soak/upgrades.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace octile::soak {
namespace {

constexpr unsigned kProgram = 0755;
constexpr unsigned kWritten = 0600;

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(3)); }

void expect(bool done, const std::string& what, const std::string& path) {
  if (!done)
    throw std::runtime_error(what + " " + path + ": " + std::generic_category().message(errno));
}

}  // namespace

Upgrades::Upgrades(const std::string& original, std::string program)
    : program_(std::move(program)) {
  std::ifstream file(original, std::ios::binary);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  if (bytes_.empty()) throw std::runtime_error("cannot read " + original);
  write(program_, kProgram);
}

void Upgrades::replace() {
  const std::string beside = program_ + ".new";
  switch (count_++ % 3) {
    case 0:
      write(beside, kProgram);
      expect(std::rename(beside.c_str(), program_.c_str()) == 0, "rename", beside);
      break;
    case 1:
      expect(::unlink(program_.c_str()) == 0, "remove", program_);
      pause();
      write(program_, kProgram);
      break;
    default:
      expect(::unlink(program_.c_str()) == 0, "remove", program_);
      write(program_, kWritten);
      pause();
      expect(::chmod(program_.c_str(), kProgram) == 0, "chmod", program_);
  }
}

void Upgrades::write(const std::string& path, unsigned mode) const {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  expect(file >= 0, "create", path);
  const std::string_view all = bytes_;
  const std::size_t half = all.size() / 2;
  for (std::string_view part : {all.substr(0, half), all.substr(half)}) {
    while (!part.empty()) {
      const ssize_t written = ::write(file, part.data(), part.size());
      expect(written > 0, "write", path);
      part.remove_prefix(static_cast<std::size_t>(written));
    }
    pause();
  }
  expect(::close(file) == 0, "close", path);
}

}  // namespace octile::soak
