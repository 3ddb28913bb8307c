#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log_format.h"

namespace perigee {
namespace {

// Keeps every message as "level text"; is the process's sink while it lives.
class Recorder : public log::Sink {
 public:
  explicit Recorder(log::Level lowest = log::Level::info) { log::set_sink(this, lowest); }
  ~Recorder() override { log::set_sink(nullptr); }
  void write(log::Level level, std::string_view text) override {
    lines.push_back(fmt::format("{} {}", static_cast<int>(level), text));
  }
  std::vector<std::string> lines;
};

}  // namespace

TEST_CASE("messages reach the sink with their level, in order") {
  Recorder recorder;
  log::info("step {}", 1);
  log::warn("slow");
  log::write(log::Level::error, "braces {} stay");
  CHECK(recorder.lines == std::vector<std::string>{"1 step 1", "2 slow", "3 braces {} stay"});
}

TEST_CASE("messages below the lowest level are dropped") {
  {
    Recorder recorder;
    log::debug("hidden");
    CHECK(recorder.lines.empty());
  }
  Recorder recorder(log::Level::debug);
  log::debug("shown");
  CHECK(recorder.lines == std::vector<std::string>{"0 shown"});
}

TEST_CASE("without a sink, messages are dropped") {
  Recorder recorder;
  log::set_sink(nullptr);
  log::info("nobody hears");
  CHECK(recorder.lines.empty());
}

TEST_CASE("a sink gets one call at a time from many threads") {
  Recorder recorder;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) log::info("{}", i);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(recorder.lines.size() == 400);
}

TEST_CASE("the standard sink writes prefixed lines to its file") {
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("perigee-log-{}", getpid());
  auto* sink = log::standard_sink("rank 2", path.string());
  sink->write(log::Level::info, "step 1 {}");
  sink->write(log::Level::warn, "slow");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  CHECK(text.str() == "rank 2: step 1 {}\nrank 2: warning: slow\n");
}

TEST_CASE("a log file that cannot be opened is an error that names it") {
  CHECK_THROWS_WITH(log::standard_sink("", "/dev/null/x"),
                    Catch::StartsWith("[log] the log file must be writable, but got "
                                      "\"/dev/null/x\""));
}

}  // namespace perigee
