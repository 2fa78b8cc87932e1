// The end of the command if memory is refused.
#pragma once

#include <unistd.h>

#include <new>
#include <string_view>

namespace octile::tools {

// Ends the process with status 1 and a sentence as soon as an object cannot be allocated. A command
// has nothing to save, and an exception would meet destructors that need memory themselves.
inline void end_if_memory_ends() {
  std::set_new_handler([] {
    constexpr std::string_view kSentence = "octile: the host has no memory left for this command\n";
    static_cast<void>(::write(STDERR_FILENO, kSentence.data(), kSentence.size()));
    ::_exit(1);
  });
}

}  // namespace octile::tools
