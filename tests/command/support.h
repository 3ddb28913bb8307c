// Runs the command as a user would: arguments in, exit status and both streams out.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::test {

struct Ran {
  int status = -1;  // exit status, or minus the signal that ended it
  std::string out;
  std::string err;
};

// Returns how often the part stands in the text.
size_t count(std::string_view text, std::string_view part);

struct How {
  std::map<std::string, std::string> environment;  // added to the test's own
  std::string folder;                              // working directory; "": the repository
  bool closed_output = false;                      // standard output is closed
  bool closed_errors = false;                      // standard error is closed
  std::string output;                              // file that standard output goes to
  double seconds = 60;                             // hard time-out: the process group is killed
  int64_t file_bytes = 0;                          // no file may grow beyond; 0: as the test's own
  int columns = 0;                                 // standard error is a terminal of this width
};

// A command that runs beside the test.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command, const How& how = {});
  ~Process();  // kills the processes that still run
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Reads both streams until standard error or standard output holds the text. Throws
  // std::runtime_error if the process ends or the time is over before.
  void wait_for(std::string_view text);
  // Reads both streams until all processes that hold them have ended. Throws std::runtime_error at
  // the time-out.
  Ran wait();

 private:
  bool read_some();

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  double deadline_ = 0;
  bool waited_ = false;
  Ran ran_;
};

// Runs build/perigee (or the program that PERIGEE_COMMAND names) with arguments separated by
// blanks, without quotes. The other form is for arguments with blanks.
Ran run(std::string_view arguments, const How& how = {});
Ran run(const std::vector<std::string>& arguments, const How& how = {});

// Returns the command's path followed by the arguments.
std::vector<std::string> perigee_command(std::string_view arguments);
std::string command_path();

// Seconds of a clock that never goes back.
double now();

// Returns whether there is one to ten lines, and none of them is from a stack trace.
bool is_short(const std::string& error);

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  // Writes a file and returns its path.
  std::string write(const std::string& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

std::string read(const std::string& path);

// Returns the names in a folder, sorted; none where there is no folder.
std::vector<std::string> names_in(const std::string& folder);

// Returns a process's children, oldest first.
std::vector<pid_t> children(pid_t pid);

// Returns a port of the loopback interface that is free now.
int free_port();

}  // namespace perigee::test
