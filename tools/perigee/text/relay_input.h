// Standard input of a command whose ranks are processes.
#pragma once

#include <sys/types.h>

namespace perigee::command {

// A process that passes standard input on to a pipe, which becomes this process's standard input and
// that of the ranks it forks. A terminal stops a rank that reads from it, since ranks are not in its
// foreground process group. The process ends with the input, with this object or with this process.
class InputRelay {
 public:
  // Throws Error where the system has no pipe or process left.
  InputRelay();
  ~InputRelay();
  InputRelay(const InputRelay&) = delete;
  InputRelay& operator=(const InputRelay&) = delete;

 private:
  pid_t pid_ = -1;
};

}  // namespace perigee::command
