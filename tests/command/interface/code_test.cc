// check, and simulate of a plan's file, open no code that a job names.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kStrategy = "strategies/data_parallel/ddp.lua";

// A library that writes a file when it is opened: a sampler, and a model plugin that makes
// no model.
class Library {
 public:
  Library() {
    const auto source = folder_.write("library.c", R"(#include <stdint.h>
#include <stdio.h>
__attribute__((constructor)) static void opened(void) {
  FILE* file = fopen(OPENED, "w");
  if (file) fclose(file);
}
void perigee_model(const char* config, void* model) {}
int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed) { return sample % count; }
)");
    Process compiler(
        {"cc", "-shared", "-fPIC", "-DOPENED=\"" + mark() + "\"", source, "-o", file()});
    const auto compiled = compiler.wait();
    INFO(compiled.err);
    REQUIRE(compiled.status == 0);
  }
  std::string file() const { return folder_ / "library.so"; }
  // Returns whether the library has been opened since the last call.
  bool opened() const { return fs::remove(mark()); }

 private:
  std::string mark() const { return folder_ / "opened"; }
  Folder folder_;
};

std::string model_of(const std::string& kind, const std::string& file) {
  return "kind = \"" + kind + "\"\nfile = \"" + file + "\"\n";
}

}  // namespace

TEST_CASE("check names a model plugin without opening it, plan and train open it") {
  const Library library;
  const TrainingJob job(model_of("plugin", library.file()));
  const auto ran = run("check " + kStrategy + " " + job.file(), job.how());
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(ran.out == kStrategy +
                       ": no mistakes found\nparallel_mode\ngrad_comm\n"
                       "not opened: the model plugin " +
                       library.file() + "\nno plan was made; with that code opened: perigee plan " +
                       job.file() + " --strategy " + kStrategy + "\n");
  CHECK_FALSE(library.opened());
  // The job and the strategy are still checked.
  const auto wrong = job.folder().write("wrong.lua",
                                        "return { { 'grad_comm', { buckt_mb = 1 } } }");
  const auto refused = run("check " + wrong + " " + job.file(), job.how());
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Contains("did you mean \"bucket_mb\"?"));
  CHECK(run("check " + kStrategy + " " + job.file() + " --set train.step=1", job.how()).status ==
        2);
  const auto function = job.folder().write("function.lua",
                                           "return function(job, graph) return {} end");
  CHECK_THAT(run("check " + function + " " + job.file(), job.how()).out,
             Contains("a function of (job, graph), which was not called\nnot opened: "));
  CHECK_FALSE(library.opened());
  for (const std::string command : {"plan", "train"}) {
    INFO(command);
    CHECK_THAT(job.refused(command, "--strategy " + kStrategy),
               Contains("built with an earlier one"));
    CHECK(library.opened());
  }
}

TEST_CASE("check opens no TorchScript file") {
  Folder folder;
  const auto file = folder.write("model.pt", "not a model");
  const TrainingJob job(model_of("torchscript", file));
  const auto ran = run("check " + kStrategy + " " + job.file(), job.how());
  CHECK(ran.status == 0);
  CHECK_THAT(ran.out, Contains("the TorchScript file " + file));
  CHECK_THAT(job.refused("plan"), Contains("must be a TorchScript file"));
}

TEST_CASE("check reads an archive of torch.export, which is data") {
  Folder folder;
  const auto file = folder.write("model.pt2", "not a model");
  const TrainingJob job(model_of("exported", file));
  const auto ran = run("check " + kStrategy + " " + job.file(), job.how());
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains(file) && Contains("archive of torch.export"));
}

TEST_CASE("simulate of a plan's file opens no model plugin that the job beside it names") {
  const Library library;
  const TrainingJob job(model_of("plugin", library.file()));
  const TrainingJob other;
  const auto plan = job.folder().write("plan.json", other.good("plan", "--nproc 2").out);
  const auto ran = run("simulate " + plan, job.how());
  CHECK(ran.status == 2);
  CHECK(is_short(ran.err));
  CHECK_THAT(ran.err, Contains("simulate PLAN.json opens no code") &&
                          Contains("the model plugin " + library.file()) &&
                          Contains("simulate " + job.file() + " --plan " + plan));
  CHECK_FALSE(library.opened());
  job.refused("simulate", "--plan " + plan);
  CHECK(library.opened());
}

TEST_CASE("check, and simulate of a run's plan, open no sampler, train opens it") {
  const Library library;
  const TrainingJob job;
  const auto sampler = " --set data.sampler=" + library.file();
  job.good("train", "--set train.steps=1" + sampler);
  CHECK(library.opened());
  const auto simulated = run("simulate " + job.output() + "/plan.json", job.how());
  INFO(simulated.err);
  CHECK(simulated.status == 0);
  const auto checked = run("check " + kStrategy + " " + job.file() + sampler, job.how());
  INFO(checked.err);
  CHECK(checked.status == 0);
  CHECK_THAT(checked.out,
             Contains("grad_comm: ") &&
                 Catch::Matchers::EndsWith("not opened: the sampler " + library.file() + "\n"));
  // A model that gets its inputs by their order is captured with samples of the data.
  job.good("plan", "--set model.unpack=sequence" + sampler);
  CHECK(library.opened());
  CHECK(run("check " + kStrategy + " " + job.file() + " --set model.unpack=sequence" + sampler,
            job.how())
            .status == 0);
  const auto script = job.folder().write(
      "sets.lua", "return { set = { [\"data.sampler\"] = \"" + library.file() +
                      "\" }, methods = { { \"parallel_mode\", { } } } }");
  const auto set = run("check " + script + " " + job.file(), job.how());
  INFO(set.err);
  CHECK(set.status == 0);
  CHECK_THAT(set.out, Contains("not opened: the sampler ") && Contains("no plan was made"));
  CHECK_FALSE(library.opened());
}
