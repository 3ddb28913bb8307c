#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "base/version.h"
#include "command.h"
#include "crash.h"
#include "launch/limits.h"

namespace perigee::command {
namespace {

// `--resume DIR` and a lone `--resume` both exist; the option never takes the job (*.toml, *.lua)
// for its DIR.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> result;
  for (int i = 1; i < argc; ++i) {
    std::string text = argv[i];
    if (text == "--resume" && i + 1 < argc) {
      const std::string next = argv[i + 1];
      if (!next.starts_with('-') && !next.ends_with(".toml") && !next.ends_with(".lua")) {
        text += "=" + next;
        ++i;
      }
    }
    result.push_back(std::move(text));
  }
  return result;
}

// Returns the names a user may have meant instead of `unknown`.
std::vector<std::string> known_names(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  if (options) {
    for (const auto* option : app.get_options()) {
      for (const auto& name : option->get_lnames()) names.push_back("--" + name);
      for (const auto& name : option->get_snames()) names.push_back("-" + name);
    }
  } else {
    for (const auto* sub : app.get_subcommands({})) names.push_back(sub->get_name());
  }
  return names;
}

[[noreturn]] void refuse(const CLI::App& app, const std::string& text) {
  const auto name = app.get_parent() ? "perigee " + app.get_name() : std::string("perigee");
  throw Error(Status::invalid, "command", fmt::format("{}; see {} --help", text, name));
}

// Returns the message of a number outside of its limits. `text`: "VALUE not in range LEAST to MOST".
std::string range_message(std::string_view option, std::string_view text) {
  constexpr std::string_view kRange = " not in range ", kTo = " to ";
  const auto value = text.substr(0, text.find(kRange));
  const auto limits = text.substr(value.size() + kRange.size());
  const auto to = limits.find(kTo);
  const auto number = [](std::string_view digits) {
    if (digits.find('.') == digits.npos) return digits;
    digits = digits.substr(0, digits.find_last_not_of('0') + 1);
    return digits.ends_with('.') ? digits.substr(0, digits.size() - 1) : digits;
  };
  const auto least = number(limits.substr(0, to)), most = number(limits.substr(to + kTo.size()));
  constexpr size_t kDigits = 20;  // no limit: the largest number of the type
  return most.size() > kDigits
             ? fmt::format("{} must be at least {}, but got {}", option, least, value)
             : fmt::format("{} must be from {} to {}, but got {}", option, least, most, value);
}

// Returns CLI11's message in the words of our own.
std::string message_of(const CLI::ParseError& error) {
  const std::string text = error.what();
  const auto after = [&](std::string_view mark) {
    const auto at = text.find(mark);
    return at == std::string::npos ? std::string() : text.substr(at + mark.size());
  };
  const auto option = text.substr(0, text.find(": "));
  if (const auto pair = after("Could not convert: "); !pair.empty()) {
    const auto equals = pair.find(" = ");
    if (equals != std::string::npos) {
      return fmt::format("{} takes a number in range, but got \"{}\"", pair.substr(0, equals),
                         pair.substr(equals + 3));
    }
  }
  if (const auto range = after("Value "); range.find(" not in range ") != std::string::npos) {
    return range_message(option, range);
  }
  if (text.ends_with(" missing")) return fmt::format("{} needs a value, but got none", option);
  if (const auto times = after("At Most 1 required but received "); !times.empty()) {
    return fmt::format("{} may be given once, but is given {} times", option, times);
  }
  if (const auto choices = after("Exactly 1 option from ["); !choices.empty()) {
    return fmt::format("exactly one of the options {} must be given",
                       choices.substr(0, choices.find(']')));
  }
  if (text.ends_with(" is required")) {
    const auto what = text.substr(0, text.size() - std::strlen(" is required"));
    if (what == "A subcommand") return "a command is needed, but there is none";
    return fmt::format("{} must be given, but is not", what);
  }
  return text;
}

[[noreturn]] void explain_extras(const CLI::App& root) {
  const CLI::App* app = &root;
  const auto chosen = root.get_subcommands();
  if (!chosen.empty()) app = chosen.front();
  const auto first = root.remaining(true).front();
  const bool option = first.starts_with('-');
  auto names = known_names(*app, option);
  if (app != &root && option) names.push_back("--verbose");
  const auto hint = did_you_mean(first, names);
  if (app == &root && !option) {
    refuse(*app, fmt::format("a command is needed, but \"{}\" is none{}", first, hint));
  }
  refuse(*app, option ? fmt::format("there is no option {}{}", first, hint)
                      : fmt::format("one argument too many: \"{}\"", first));
}

// Returns `status` once standard output has taken all of the result.
int flushed(int status) {
  require_flushed();
  return status;
}

// Gives a closed standard stream a descriptor that no file of ours can get: writing results to it
// is an error, messages are dropped.
void keep_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    [[maybe_unused]] const int opened = ::open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY);
  }
}

int run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("perigee %.*s\n", int(kVersion.size()), kVersion.data());
    return flushed(0);
  }
  CLI::App app("Perigee trains LibTorch models on many devices, planned by Lua strategies.",
               "perigee");
  app.set_version_flag("--version", fmt::format("perigee {}", kVersion));
  app.require_subcommand(1);
  app.allow_extras();
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "more log messages, and stack traces of scripts");
  Action action;
  add_training_commands(app, action);
  add_text_commands(app, action);
  add_job_commands(app, action);
  add_check_command(app, action);
  add_core_commands(app, action);
  add_tokenize_command(app, action);
  add_plot_command(app, action);
  add_watch_command(app, action);
  add_solve_command(app, action);
  add_new_command(app, action);
  add_doctor_command(app, action);
  for (auto* sub : app.get_subcommands({})) {
    sub->allow_extras();
    sub->fallthrough();
  }
  try {
    auto words = arguments(argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(words);
  } catch (const CLI::Success& success) {
    return flushed(app.exit(success));
  } catch (const CLI::RequiredError& error) {
    if (app.get_subcommands().empty() && !app.remaining(true).empty()) explain_extras(app);
    refuse(app.get_subcommands().empty() ? app : *app.get_subcommands().front(), message_of(error));
  } catch (const CLI::ParseError& error) {
    refuse(app.get_subcommands().empty() ? app : *app.get_subcommands().front(), message_of(error));
  }
  if (!app.remaining(true).empty()) explain_extras(app);
  log::set_sink(log::standard_sink(), verbose ? log::Level::debug : log::Level::info);
  return flushed(action());
}

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "perigee: %s\n", error.what());
    return static_cast<int>(error.status());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "perigee: [command] memory is needed, but the system has none left\n");
    return 1;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "perigee: %s %s%s\n", std::string(kNoThread).c_str(), error.what(),
                 limit_reached(error.what()).c_str());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "perigee: [internal] %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace perigee::command

int main(int argc, char** argv) {
  perigee::command::keep_standard_streams();
  perigee::command::report_exhaustion("");
  const int status = perigee::command::run_guarded(argc, argv);
  // All work is done, and the system frees the process's resources; LibTorch would first destroy
  // its registries.
  std::fflush(nullptr);
  std::_Exit(status);
}
