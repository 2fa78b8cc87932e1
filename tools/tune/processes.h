// Processes that share work: they are forked together, tell their parent lines of JSON, and end
// with it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "tools/common/handles.h"

namespace octile::tools {

struct Process {
  std::string name;  // for sentences
  pid_t number = 0;
  int reports_fd = -1;      // -1: it has ended
  std::string unread = {};  // the beginning of a line
  int wait_status = 0;      // of waitpid(), once it has ended
  Status result = {};       // what its work returned, if it lived to tell it
  bool ended() const { return reports_fd < 0; }
  bool ended_well() const { return ended() && wait_status == 0 && result; }
};

// Returns what became of a process that did not end well: "was ended by signal 9 (Killed)", "ended
// with status 3", or its work's error.
std::string end_text(const Process& process);

class Processes {
 public:
  using Tell = std::function<void(const Json& line)>;
  using Work = std::function<Status(const Tell& tell)>;

  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes();  // kills those that have not ended

  // Forks a process that does the work. It has a process group of its own, so that a terminal's
  // SIGINT reaches the parent alone, and the system kills it if this thread ends. To be called
  // before the process has other threads. Errors: kInternal if the system refuses a process.
  Status start(std::string name, const Work& work);

  struct Listener {
    std::function<void(const Process&, const Json& line)> heard;
    std::function<void(const Process&)> ended;
    std::function<bool()> is_interrupted;
  };
  // Returns once all have ended. An interrupt is passed on to each once, as SIGINT.
  void wait(const Listener& listener);

  const std::vector<Process>& all() const { return all_; }

 private:
  void hear(Process& process, const Listener& listener);

  std::vector<Process> all_;
};

}  // namespace octile::tools
