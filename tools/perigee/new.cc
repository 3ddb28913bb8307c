// perigee new: a folder to start from, copied from the files of runtime/ and strategies/.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/fail.h"
#include "command.h"

namespace perigee::command {
namespace {

namespace fs = std::filesystem;

// The files of a new folder, by the kind of its model, and how to go on.
struct Start {
  std::vector<std::string> files;  // files and folders of runtime/; of a folder its content
  std::map<std::string, std::string> data;  // files of strategies/data, by their new names
  std::string text;                         // {0}: the new folder
  std::string next;                         // commands; {0}: the job, {1}: perigee, {2}: model.py
};

const std::map<std::string, Start>& starts() {
  static const std::map<std::string, Start> all = {
      {"plugin",
       {{"new"},
        {{"text.txt", "novels.txt"}, {"tokenizer.model", "novels.model"}},
        "{0} holds\n"
        "  job.toml       what to train\n"
        "  strategy.lua   how to spread it over ranks\n"
        "  model.cc       a model plugin, and CMakeLists.txt to build it\n"
        "  text.txt       the text that it learns: two novels by Jane Austen\n"
        "  tokenizer.model  the vocabulary of that text\n",
        "{1} train {0}"}},
      {"pytorch",
       {{"new_pytorch", "new/strategy.lua", "export.py"},
        {{"text.txt", "novels.txt"}},
        "{0} holds\n"
        "  job.toml       what to train\n"
        "  strategy.lua   how to spread it over ranks\n"
        "  model.py       a model in PyTorch (2.11), and export.py, which writes it as an archive\n"
        "  text.txt       the text that it learns: two novels by Jane Austen\n",
        "python3 {2} && {1} train {0}"}},
  };
  return all;
}

// Settings for editors with lua-language-server: the types of Perigee's modules.
void write_editor_settings(const fs::path& folder, const std::string& runtime,
                           std::error_code& error) {
  const nlohmann::json settings = {{"runtime.version", "LuaJIT"},
                                   {"workspace.library", {runtime}},
                                   {"workspace.checkThirdParty", false}};
  std::ofstream file(folder / ".luarc.json");
  file << settings.dump(2) << "\n";
  if (!file.flush()) error = std::make_error_code(std::errc::io_error);
}

// Returns the folder of the installation or of the build that the command belongs to.
fs::path prefix() {
  std::error_code ignored;
  const auto folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return fs::exists(folder / "PerigeeConfig.cmake", ignored) ? folder : folder.parent_path();
}

// Writes the command's prefix where the CMake project has @perigee_prefix@.
void write_prefix(const fs::path& project, std::error_code& error) {
  auto text = read_file(project.string());
  const std::string name = "@perigee_prefix@";
  const auto at = text.find(name);
  if (at == std::string::npos) return;
  text.replace(at, name.size(), prefix().string());
  std::ofstream file(project);
  file << text;
  if (!file.flush()) error = std::make_error_code(std::errc::io_error);
}

int run(const std::string& folder, const std::string& from) {
  const auto templates = shipped_folder("runtime"), strategies = shipped_folder("strategies");
  if (templates.empty() || strategies.empty())
    fail("command",
         "perigee new copies files of runtime and strategies, but they are not beside the command: "
         "reinstall");
  std::error_code error;
  if (fs::exists(folder) && !fs::is_empty(folder, error)) {
    fail("command", "perigee new makes a new folder, but {} exists and is not empty", folder);
  }
  fs::create_directories(folder, error);
  const auto& start = starts().at(from);
  for (const auto& file : start.files) {
    if (error) break;
    const auto path = fs::path(templates) / file;
    fs::copy(path, fs::is_directory(path) ? fs::path(folder) : fs::path(folder) / path.filename(),
             fs::copy_options::recursive, error);
  }
  for (const auto& [name, shipped] : start.data) {
    if (error) break;
    fs::copy_file(fs::path(strategies) / "data" / shipped, fs::path(folder) / name, error);
  }
  const auto project = fs::path(folder) / "CMakeLists.txt";
  if (!error && fs::exists(project)) write_prefix(project, error);
  if (!error) write_editor_settings(folder, templates, error);
  if (error) {
    throw Error(Status::failed, "command",
                fmt::format("{} must be written, but: {}", folder, error.message()));
  }
  const auto file = [&](const char* name) { return quoted((fs::path(folder) / name).string()); };
  write_result({}, fmt::format(fmt::runtime(start.text), folder) + "Start with: " +
                       fmt::format(fmt::runtime(start.next), file("job.toml"),
                                   quoted(command_name()), file("model.py")) +
                       "\n");
  return 0;
}

}  // namespace

void add_new_command(CLI::App& app, Action& action) {
  struct Options {
    std::string folder, from = "plugin";
  };
  auto options = std::make_shared<Options>();
  auto* sub = add_command(
      app, "new",
      "a commented job, a strategy and a model (a plugin in C++, or PyTorch) to "
      "start from",
      {"perigee new mine && perigee train mine/job.toml",
       "perigee new --from pytorch mine && python3 mine/model.py"});
  sub->add_option("DIR", options->folder, "the folder to make")->required();
  std::vector<std::string> names;
  for (const auto& [name, start] : starts()) names.push_back(name);
  sub->add_option("--from", options->from, "the model's language: plugin, pytorch")
      ->check(CLI::IsMember(names));
  sub->callback(
      [options, &action] { action = [options] { return run(options->folder, options->from); }; });
}

}  // namespace perigee::command
