#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string_view>

#include "base/error.h"
#include "base/fail.h"
#include "base/files/durable.h"
#include "base/log_format.h"
#include "base/text/bytes.h"
#include "command.h"

namespace perigee::command {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code ignored;
  if (!file || fs::is_directory(path, ignored)) {
    fail("command", "{} must be a readable file, but {}", path,
         fs::exists(path, ignored) ? "it cannot be read" : "there is none");
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

void require_flushed() {
  if (std::cout.flush() && std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  throw Error(Status::failed, "command",
              "the result must be written to standard output, but it cannot be");
}

void write_result(const OutputOptions& options, const std::string& text) {
  if (options.file.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    require_flushed();
    return;
  }
  std::error_code ignored;
  const bool is_file = !fs::exists(options.file, ignored) ||
                       fs::is_regular_file(options.file, ignored);
  write_durably(options.file, text);
  if (is_file) log_written(options.file);  // not a device or a pipe
}

void require_file(const std::string& path) {
  if (!path.empty()) require_writable(path);
}

std::string command_name() {
  std::string typed;  // up to the first NUL
  std::getline(std::ifstream("/proc/self/cmdline"), typed, '\0');
  if (typed.find('/') == std::string::npos) return "perigee";
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code missing;
    const auto found = fs::path(folder) / "perigee";
    if (!fs::exists(found, missing)) continue;
    return fs::equivalent(found, typed, missing) ? "perigee" : typed;
  }
  return typed;
}

std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

void log_written(const std::string& path) {
  std::error_code ignored;
  const auto bytes = fs::file_size(path, ignored);
  log::info("wrote {}{}", path, ignored ? "" : fmt::format(" ({})", bytes_text(double(bytes))));
}

std::string shipped_folder(const std::string& name) {
  std::error_code ignored;
  const auto command = fs::read_symlink("/proc/self/exe", ignored);
  const auto above = command.parent_path().parent_path();
  for (const auto& folder : {above / name, above / "share" / "perigee" / name}) {
    if (fs::is_directory(folder, ignored)) return folder.string();
  }
  return "";
}

}  // namespace perigee::command
