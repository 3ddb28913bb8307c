// perigee doctor: devices, back ends, versions, and what is missing.
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/version.h"
#include "command.h"
#include "host.h"

namespace perigee::command {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

int run() {
  utsname system{};
  ::uname(&system);
  std::string text = fmt::format(
      "perigee     {}\nsystem      {} {} {}\nprocessor   {}, {} cores\nmemory      {:.1f} GiB\n",
      kVersion, system.sysname, system.release, system.machine, processor(),
      ::sysconf(_SC_NPROCESSORS_ONLN), usable_memory() / (1 << 30));
  for (const char* folder : {"runtime", "strategies"}) {
    const auto path = shipped_folder(folder);
    text += fmt::format("{:<12}{}\n", folder,
                        path.empty() ? "missing: reinstall, or run from the build" : path);
  }
  int status = 0;
  try {
    for (const auto& line : torch_host().doctor()) text += line + "\n";
  } catch (const Error& error) {
    text += fmt::format("LibTorch    {}\n", error.what());
    status = 1;
  }
  write_result({}, text);
  return status;
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& action) {
  auto* sub = add_command(app, "doctor", "devices, back ends, versions, and what is missing",
                          {"perigee doctor"});
  sub->callback([&action] { action = run; });
}

}  // namespace perigee::command
