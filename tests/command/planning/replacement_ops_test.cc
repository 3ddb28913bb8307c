// Ops that the replacements of scripts, plans and resumed plans may name: none that touches a file.
#include <sys/inotify.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::string kInputs =
    "perigee.graph/1\n"
    "input parameter %0: float32[1009, 1013] = x\n"
    "input data %1: float32[1009, 1013] = gradient:y\n";

// The activation of the built-in gpt.
const std::string kPattern =
    kInputs +
    "%2: float32[1009, 1013] = aten::gelu(self=%0, approximate=\"tanh\")   @ forward\n"
    "%3: float32[1009, 1013] = aten::gelu_backward(grad_output=%1, self=%0, approximate=\"tanh\")"
    "   @ backward of %2\n"
    "output result %2 = y\noutput gradient %3 = x\n";

const std::string kHarmless =
    kInputs +
    "%2: float32[1009, 1013] = aten::gelu(self=%0)   @ forward\n"
    "%3: float32[1009, 1013] = aten::gelu_backward(grad_output=%1, self=%0)   @ backward of %2\n"
    "output result %2 = y\noutput gradient %3 = x\n";

// A replacement that adds `line`, the definition of a float32[1024] %2, to the gradient.
std::string with_op(const std::string& line) {
  return kInputs + "%2: float32[1024] = " + line +
         "   @ forward\n"
         "%3: float32[] = aten::sum(self=%2)   @ forward\n"
         "%4: float32[1009, 1013] = aten::add.Tensor(self=%0, other=%3)   @ forward\n"
         "%5: float32[1009, 1013] = aten::gelu_backward(grad_output=%1, self=%0)"
         "   @ backward of %4\n"
         "output result %4 = y\noutput gradient %5 = x\n";
}

// from_file with shared = true creates the file, or extends it to the size.
std::string from_file(const std::string& path) {
  return with_op("aten::from_file(filename=\"" + path + "\", shared=true, size=1024)");
}
std::string from_file_out(const std::string& path) {
  return with_op("aten::from_file.out(filename=\"" + path + "\", shared=true, size=1024, out=%0)");
}

std::string script_with(const TrainingJob& job, const std::string& replacement) {
  return job.folder().write("mine.lua",
                            "local m = require \"perigee.methods\"\nreturn {\n"
                            "  m.parallel_mode {},\n"
                            "  m.module_replace { { name = \"mine\", pattern = [==[\n" +
                                kPattern + "]==], replacement = [==[\n" + replacement +
                                "]==] } },\n}\n");
}

// Writes the plan with another replacement.
std::string replaced_plan(const TrainingJob& job, const std::string& file,
                          const std::string& replacement) {
  auto plan = json::parse(read(file));
  REQUIRE(plan["rewrites"].size() == 1);
  plan["rewrites"][0]["replacement"] = replacement;
  return job.folder().write("replaced.json", plan.dump());
}

// Files outside the job: one that is there, whose opening is seen, and one that is not.
class Outside {
 public:
  Outside() {
    folder_.write("present", "1234");
    events_ = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    REQUIRE(::inotify_add_watch(events_, present().c_str(), IN_OPEN | IN_MODIFY) >= 0);
    read(present());  // the watch works
    REQUIRE(opened());
  }
  ~Outside() { ::close(events_); }

  std::string present() const { return folder_ / "present"; }
  std::string absent() const { return folder_ / "absent"; }
  void check_untouched() const {
    CHECK_FALSE(opened());
    CHECK(fs::file_size(present()) == 4);
    CHECK_FALSE(fs::exists(absent()));
  }

 private:
  // Returns whether the present file has been opened since the last call.
  bool opened() const {
    char events[4096];
    return ::read(events_, events, sizeof events) > 0;
  }

  Folder folder_;
  int events_ = -1;
};

// Checks that the command refuses an op of the replacement and touches no file outside.
void check_refused(const Outside& outside, const Ran& ran, const std::string& op) {
  INFO(ran.out << ran.err);
  CHECK(ran.status == 2);
  CHECK(is_short(ran.err));
  CHECK_THAT(ran.err, Contains(op + " in mine takes the text \"filename\""));
  outside.check_untouched();
}

}  // namespace

TEST_CASE("an op that a script names neither creates, reads nor extends a file") {
  const TrainingJob job;
  const Outside outside;
  // The pair replaces layers where its ops are harmless.
  CHECK_THAT(job.good("plan", "--explain --strategy " + script_with(job, kHarmless)).out,
             Contains("mine is one op, forward and backward, at 2 places"));
  const auto check_all = [&](const std::string& op, const std::string& replacement) {
    const auto script = script_with(job, replacement);
    for (const std::string command : {"plan", "simulate", "train"}) {
      INFO(command);
      check_refused(outside, job(command, "--strategy " + script), op);
    }
    check_refused(outside, run("check " + script, job.how()), op);
    check_refused(outside, run("check " + script + " " + job.file(), job.how()), op);
    CHECK_THAT(run("check " + script, job.how()).err, Contains("mine.lua:"));
  };
  check_all("aten::from_file", from_file(outside.present()));
  check_all("aten::from_file.out", from_file_out(outside.absent()));
  CHECK_FALSE(fs::exists(job.output()));
}

TEST_CASE("an op that writes to its operand is refused where a script names it") {
  const TrainingJob job;
  const auto script = script_with(
      job, kInputs +
               "%2: float32[1009, 1013] = aten::neg.out(self=%0, out=%0)   @ forward\n"
               "%3: float32[1009, 1013] = aten::neg(self=%1)   @ backward of %2\n"
               "output result %2 = y\noutput gradient %3 = x\n");
  CHECK_THAT(job.refused("plan", "--strategy " + script),
             Contains("aten::neg.out in mine writes to an operand"));
}

TEST_CASE("an op that a plan's file names neither creates, reads nor extends a file") {
  const TrainingJob job;
  const Outside outside;
  const auto plan = job.folder() / "plan.json";
  job.good("plan", "--strategy " + script_with(job, kHarmless) + " -o " + plan);
  for (const std::string command : {"plan", "simulate", "train"}) {
    INFO(command);
    const auto present = replaced_plan(job, plan, from_file(outside.present()));
    check_refused(outside, job(command, "--plan " + present), "aten::from_file");
    const auto absent = replaced_plan(job, plan, from_file_out(outside.absent()));
    check_refused(outside, job(command, "--plan " + absent), "aten::from_file.out");
  }
  CHECK_FALSE(fs::exists(job.output()));
  job.good("train", "--plan " + plan);
}

TEST_CASE("an op that a resumed run's plan names neither creates, reads nor extends a file") {
  const TrainingJob job;
  const Outside outside;
  const auto plan = job.output() + "/plan.json";
  job.good("train", "--set train.steps=2 --strategy " + script_with(job, kHarmless));
  job.good("train", "--set train.steps=3 --resume");
  const auto written = json::parse(read(plan));
  for (const auto& [op, replacement] :
       {std::pair{"aten::from_file", from_file(outside.present())},
        std::pair{"aten::from_file.out", from_file_out(outside.absent())}}) {
    const auto replaced = replaced_plan(job, plan, replacement);
    fs::copy_file(replaced, plan, fs::copy_options::overwrite_existing);
    check_refused(outside, job("train", "--set train.steps=4 --resume"), op);
    CHECK(job.losses().size() == 3);
    CHECK(job.newest_checkpoint() == 3);
  }
  fs::remove(plan);
  job.folder().write("run/plan.json", written.dump());
  job.good("train", "--set train.steps=4 --resume");
}
