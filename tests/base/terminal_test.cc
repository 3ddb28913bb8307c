// Lines of a terminal: their width, their bar, their colours.
#include "base/terminal/terminal.h"

#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <functional>

#include "base/log.h"
#include "base/terminal/phases.h"
#include "base/terminal/progress.h"

namespace perigee {
namespace {

const log::Progress kStepOf{
    .text = "step 20/200", .share = 0.1, .details = {"loss 4.1700", "1:14 left", "19980 tokens/s"}};

std::string line(int columns) { return log::progress_line(kStepOf, columns, /*colours=*/false); }

// Returns what `f` writes to a terminal of these columns, in a process of its own.
std::string shown(int columns, const std::function<void()>& f) {
  const winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(columns)};
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    f();
    ::_exit(0);
  }
  std::string text;
  char buffer[512];
  for (ssize_t n; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) text.append(buffer, n);
  ::waitpid(child, nullptr, 0);
  ::close(terminal);
  return text;
}

void log_and_progress() {
  log::set_sink(log::standard_sink());
  log::progress(kStepOf);
  log::write(log::Level::warn, "slow");
}

}  // namespace

TEST_CASE("a progress line has the bar and the details that its columns allow") {
  CHECK(line(90) ==
        "step 20/200 [===>                          ] loss 4.1700, 1:14 left, 19980 tokens/s");
  CHECK(line(79) ==
        "step 20/200 [==>                       ] loss 4.1700, 1:14 left, 19980 tokens/s");
  CHECK(line(60) == "step 20/200 [==>                    ] loss 4.1700, 1:14 left");
  CHECK(line(39) == "step 20/200 [=>           ] loss 4.1700");
  CHECK(line(34) == "step 20/200 [>       ] loss 4.1700");
  CHECK(line(33) == "step 20/200, loss 4.1700");
  CHECK(line(20) == "step 20/200");
  CHECK(line(6) == "step 2");
}

TEST_CASE("a bar shows the share that is done") {
  const auto bar = [](double share) {
    return log::progress_line({.text = "x", .share = share, .details = {}}, 14, false);
  };
  CHECK(bar(0) == "x [>         ]");
  CHECK(bar(0.5) == "x [=====>    ]");
  CHECK(bar(0.999) == "x [=========>]");
  CHECK(bar(1) == "x [==========]");
  CHECK(bar(7) == bar(1));
  CHECK(bar(-1) == "x");
}

TEST_CASE("colours take no columns, and a line is cut between characters") {
  for (const int columns : {90, 60, 39}) {
    const auto coloured = log::progress_line(kStepOf, columns, true);
    CHECK(columns_of(coloured) == columns_of(line(columns)));
    CHECK(coloured.find(kGreen) != std::string::npos);
  }
  CHECK(columns_of("gr\u00fc\u00dfe") == 5);
  CHECK(first_columns("gr\u00fc\u00dfe", 3) == "gr\u00fc");
  CHECK(first_columns("\x1b[32mgreen\x1b[0m", 2) == "\x1b[32mgr\x1b[0m");
}

TEST_CASE("a terminal has colours unless NO_COLOR is set, and a dumb one has no moving line") {
  const std::string clear = "\r\x1b[K";
  const auto coloured = shown(40, log_and_progress);
  CHECK(coloured.find("\x1b[33mwarning: \x1b[0mslow\r\n") != std::string::npos);
  CHECK(coloured.find(kGreen) != std::string::npos);
  const auto plain = shown(40, [] {
    ::setenv("NO_COLOR", "1", 1);
    log_and_progress();
  });
  CHECK(plain == clear + line(39) + clear + "warning: slow\r\n" + clear + line(39));
  CHECK(shown(40, [] {
          ::setenv("TERM", "dumb", 1);
          log_and_progress();
        }) == "warning: slow\r\n");
}

TEST_CASE("a line follows the terminal's width") {
  const auto text = shown(80, [] {
    ::setenv("NO_COLOR", "1", 1);
    log::set_sink(log::standard_sink());
    log::progress(kStepOf);
    const winsize size{.ws_row = 24, .ws_col = 40};
    ::ioctl(STDERR_FILENO, TIOCSWINSZ, &size);
    log::progress(kStepOf);
  });
  CHECK(text == "\r\x1b[K" + line(79) + "\r\x1b[K" + line(39));
}

TEST_CASE("phases show how much of them is done, and are removed") {
  const auto text = shown(30, [] {
    ::setenv("NO_COLOR", "1", 1);
    log::set_sink(log::standard_sink());
    log::Phases phases(true);
    phases.done(1, 2);  // no phase yet
    phases.begin("loading");
    phases.done(5, 10);
    phases.begin("compiling");
    phases.end();
    log::Phases(false).begin("of another rank");
  });
  const std::string clear = "\r\x1b[K";
  CHECK(text == clear + "loading ..." + clear + "loading [=========>         ]" + clear +
                    "compiling ..." + clear);
}

}  // namespace perigee
