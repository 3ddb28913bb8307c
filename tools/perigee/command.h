// The `perigee` command: one file a group of subcommands, each adding itself to the parser.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cctype>
#include <charconv>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace perigee::command {

// The function that main runs once the arguments are parsed. Returns the exit status.
using Action = std::function<int()>;

// Options of commands that work on a job (runtime/command_line.md).
struct JobOptions {
  std::string file;  // job or strategy script
  std::string strategy, plan, cluster, rendezvous, interface, secret_file;
  int64_t nproc = 0;
  int64_t nodes = 1;        // hosts, at most
  int64_t least_nodes = 1;  // at least
  int64_t node_rank = -1;   // -1: not given
  int64_t max_restarts = 0;
  // train --resume: the run or checkpoint, "newest": the run of train.output; "": none.
  std::string resume;
  bool resume_if_any = false;
  std::vector<std::string> sets;
  double script_seconds = 5;
  int64_t script_megabytes = 256;
};

// Where results go.
struct OutputOptions {
  std::string file;
  bool json = false;
};

// Makes a subcommand whose help ends with the examples, whole command lines.
CLI::App* add_command(CLI::App& app, const char* name, const char* about,
                      std::initializer_list<const char*> examples);

// A number above 0.
CLI::Validator positive();

// A number of ranks on a host.
CLI::Validator rank_count();

template <std::integral T>
bool read_integer(const std::string& text, T& value) {
  const auto* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end;
}
template <std::integral T>
bool read_integer(const std::string& text, std::optional<T>& value) {
  return read_integer(text, value.emplace());
}

// An option of an integer in decimal digits. CLI11 itself reads 010 as 8, and a number beyond the
// type's limits as the nearest of them.
template <class T>
CLI::Option* add_integer(CLI::App& app, const std::string& name, T& value,
                         const std::string& about) {
  const CLI::Validator decimal(  // for the checks of its size, which follow
      [](std::string& text) {
        while (text[0] == '0' && std::isdigit(static_cast<unsigned char>(text[1])))
          text.erase(0, 1);
        return std::string();
      },
      "");
  const CLI::callback_t take = [&value](const CLI::results_t& texts) {
    return read_integer(texts.front(), value);
  };
  return app.add_option(name, take, about)->type_name("INT")->transform(decimal);
}

// An option that may be given several times, with one text each.
CLI::Option* add_texts(CLI::App& app, const std::string& name, std::vector<std::string>& texts,
                       const std::string& about);

void add_job_options(CLI::App& app, JobOptions& options);
void add_output_options(CLI::App& app, OutputOptions& options);

// Throws Error unless standard output has taken all that was written to it.
void require_flushed();

// Writes the text to standard output, or to the file of -o, whole or not at all, and logs it then
// (log_written). Throws Error.
void write_result(const OutputOptions& options, const std::string& text);

// Throws Error where the file of an option cannot be written, before any work; "": none is asked for.
void require_file(const std::string& path);

// Returns the content of a file. Throws Error naming it.
std::string read_file(const std::string& path);

// Returns a folder that ships with the command ("strategies", "runtime"): beside the
// build folder, or share/perigee of an installation.
std::string shipped_folder(const std::string& name);

// Returns how the user calls the command: "perigee" where that is on the PATH, else as it was typed.
std::string command_name();

// Returns the word as a shell reads it.
std::string quoted(const std::string& word);

// Logs that a file was written, and its size.
void log_written(const std::string& path);

// Each adds its subcommands; the chosen one's callback sets `action`.
void add_core_commands(CLI::App& app, Action& action);  // mesh, schedule, lua
void add_tokenize_command(CLI::App& app, Action& action);
void add_plot_command(CLI::App& app, Action& action);
void add_watch_command(CLI::App& app, Action& action);
void add_solve_command(CLI::App& app, Action& action);
void add_job_commands(CLI::App& app, Action& action);  // plan, simulate, graph
void add_check_command(CLI::App& app, Action& action);
void add_training_commands(CLI::App& app, Action& action);  // train, profile, evaluate, export
void add_text_commands(CLI::App& app, Action& action);      // sample, chat, serve
void add_new_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);

}  // namespace perigee::command
