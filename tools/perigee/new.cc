// perigee new: a folder to start from, copied from runtime/new.
#include <filesystem>
#include <memory>

#include "base/fail.h"
#include "command.h"

namespace perigee::command {
namespace {

namespace fs = std::filesystem;

int run(const std::string& folder) {
  const auto templates = shipped_folder("runtime");
  if (templates.empty())
    fail("command",
         "perigee new copies runtime/new, but runtime is not beside the command: reinstall");
  std::error_code error;
  if (fs::exists(folder) && !fs::is_empty(folder, error)) {
    fail("command", "perigee new makes a new folder, but {} exists and is not empty", folder);
  }
  fs::create_directories(folder, error);
  if (!error) fs::copy(fs::path(templates) / "new", folder, fs::copy_options::recursive, error);
  if (error) {
    throw Error(Status::failed, "command",
                fmt::format("{} must be written, but: {}", folder, error.message()));
  }
  write_result({}, fmt::format("{0} holds\n  job.toml       what to train\n  strategy.lua   how to "
                               "spread it over ranks\n"
                               "  model.cc       a model plugin, and CMakeLists.txt to build it\n"
                               "Start with: perigee train {0}/job.toml\n",
                               folder));
  return 0;
}

}  // namespace

void add_new_command(CLI::App& app, Action& action) {
  auto folder = std::make_shared<std::string>();
  auto* sub = add_command(app, "new",
                          "a commented job, a strategy and a model plugin to start from",
                          {"perigee new mine && perigee train mine/job.toml"});
  sub->add_option("DIR", *folder, "the folder to make")->required();
  sub->callback([folder, &action] { action = [folder] { return run(*folder); }; });
}

}  // namespace perigee::command
