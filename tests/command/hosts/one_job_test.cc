// What several hosts must agree on before they train together, and how they stop together.
#include <signal.h>

#include <catch2/catch.hpp>
#include <map>
#include <memory>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// Two hosts of one job, on this one.
class TwoTrainings {
 public:
  // `first`, `second`: further arguments of each. `variables`: environment of the second.
  TwoTrainings(const TrainingJob& job, const std::string& first, const std::string& second,
               const std::map<std::string, std::string>& variables = {})
      : port_(std::to_string(free_port())),
        first_(words(job, 0, first), job.how()),
        second_(words(job, 1, second), with(job.how(), variables)) {}

  Process& first() { return first_; }
  Process& second() { return second_; }
  // Returns the seconds since both were started.
  double seconds() const { return now() - started_; }

 private:
  std::vector<std::string> words(const TrainingJob& job, int node, const std::string& more) const {
    const bool resumes = more.find("--resume") != std::string::npos;
    return job.words("train", std::string(resumes ? "" : "--overwrite ") +
                                  "--nproc 1 --nodes 2 --rendezvous 127.0.0.1:" + port_ +
                                  " --node-rank " + std::to_string(node) + " " + more);
  }

  static How with(How how, const std::map<std::string, std::string>& variables) {
    how.environment.insert(variables.begin(), variables.end());
    return how;
  }

  std::string port_;
  Process first_, second_;
  const double started_ = now();
};

// Checks that both hosts exit with status 2 and one message within 5 s of their start, and returns
// the message. A host that only lost the other would exit with status 1 at the time-out of 20 s.
std::string refused(const TrainingJob& job, const std::string& first, const std::string& second) {
  TwoTrainings hosts(job, first, second);
  const auto here = hosts.first().wait(), there = hosts.second().wait();
  const double seconds = hosts.seconds();
  INFO(here.err << there.err);
  CHECK(seconds < 5);
  CHECK(here.status == 2);
  CHECK(there.status == 2);
  CHECK(is_short(here.err));
  CHECK(is_short(there.err));
  CHECK_FALSE(std::filesystem::exists(job.output()));
  return here.err.substr(here.err.find("[job]")) == there.err.substr(there.err.find("[job]"))
             ? here.err
             : here.err + there.err;
}

}  // namespace

TEST_CASE("hosts with another job are refused on all hosts with the keys and values") {
  const TrainingJob job;
  CHECK_THAT(refused(job, "", "--set optimizer.lr=0.5"),
             Contains("optimizer.lr is 0.001 on rank 0 and 0.5 on rank 1"));
  CHECK_THAT(refused(job, "--set seed=7", "--set data.sequence=16"),
             Contains("data.sequence is 32 on rank 0 and 16 on rank 1") &&
                 Contains("seed is 7 on rank 0 and 1234 on rank 1"));
  CHECK_THAT(refused(job, "", "--set batch.global=16 --set train.steps=8"),
             Contains("batch.global") && Contains("train.steps"));
  CHECK_THAT(refused(job, "", "--set model.width=64"), Contains("model.width"));
  CHECK_THAT(refused(job, "", "--set train.checkpoint_every=3"),
             Contains("train.checkpoint_every"));
}

TEST_CASE("data files of one name and another size are another job") {
  const TrainingJob job;
  const auto text = read("strategies/data/novels.txt");
  const auto shorter = job.folder().write("novels.txt", text.substr(0, text.size() / 2));
  CHECK_THAT(refused(job, "", "--set data.text=[\"" + shorter + "\"]"),
             Contains("the size of the data's files is " + std::to_string(text.size()) + " bytes"));
  auto other_text = text;
  other_text[0] = other_text[0] == 'x' ? 'y' : 'x';
  const auto other = job.folder().write("novels.txt", other_text);
  const auto refusal = refused(job, "", "--set data.text=[\"" + other + "\"]");
  CHECK_THAT(refusal, Contains("the hash of parts of the data's files is ") && !Contains("size"));
}

TEST_CASE("hosts with another strategy or plan, or another kind of start, are refused") {
  const TrainingJob job;
  CHECK_THAT(refused(job, "--strategy ddp", "--strategy fsdp"),
             Contains("the strategy is ddp.lua (hash ") && Contains(" on rank 0 and fsdp.lua"));
  const std::string script = "return { require('perigee.methods').gradient_accumulation";
  const auto two = job.folder().write("s.lua", script + " { microbatches = 2 } }");
  std::filesystem::create_directory(job.folder() / "other");
  const auto four = job.folder().write("other/s.lua", script + " { microbatches = 4 } }");
  CHECK_THAT(refused(job, "--strategy " + two, "--strategy " + four),
             Contains("the strategy is s.lua (hash ") && Contains(" on rank 0 and s.lua (hash "));
  CHECK_THAT(
      refused(job, "--set epl.pipeline.num_micro_batch=2", "--set epl.pipeline.num_micro_batch=4"),
      Contains("the table of epl is ") && Contains("num_micro_batch = 2") &&
          Contains("num_micro_batch = 4"));
  CHECK_THAT(refused(job, "", "--resume"),
             Contains("--overwrite is given on rank 0 and not given on rank 1") &&
                 Contains("--resume is not given on rank 0 and given on rank 1"));
}

TEST_CASE("options of several hosts warn where a job has one") {
  const TrainingJob job;
  const auto secret = job.folder().write("secret", std::string(32, 's'));
  const auto ran = job.good("train",
                            "--rendezvous 127.0.0.1:1 --interface none --secret-file " + secret);
  for (const char* option : {"--rendezvous", "--interface", "--secret-file"}) {
    CHECK_THAT(ran.err, Contains(std::string(option) +
                                 " has no effect: all ranks are on one node (--nodes)"));
  }
}

TEST_CASE("hosts that count different ranks are refused at once") {
  const TrainingJob job;
  const auto check = [&](const std::string& here, const std::string& there,
                         const std::string& counts) {
    const auto port = std::to_string(free_port());
    const auto words = [&](const std::string& node, const std::string& more) {
      return job.words("train", "--overwrite --rendezvous 127.0.0.1:" + port + " --node-rank " +
                                    node + " " + more);
    };
    Process first(words("0", here), job.how()), second(words("1", there), job.how());
    const double started = now();
    for (auto* host : {&first, &second}) {
      const auto ran = host->wait();
      INFO(ran.err);
      CHECK(ran.status == 2);
      CHECK_THAT(ran.err, Contains("the number of ranks is " + counts));
    }
    CHECK(now() - started < 5);
  };
  check("--nproc 1 --nodes 2", "--nproc 1 --nodes 3", "2 on rank 0 and 3 on rank 1");
  check("--nproc 1 --nodes 3", "--nproc 1 --nodes 2", "3 on rank 0 and 2 on rank 1");
  check("--nproc 1 --nodes 2", "--nproc 2 --nodes 2", "2 on rank 0 and 4 on rank ");
  check("--nproc 2 --nodes 2", "--nproc 1 --nodes 2", "4 on rank 0 and 2 on rank 1");
}

TEST_CASE("two processes of one rank are refused") {
  const TrainingJob job;
  const auto port = std::to_string(free_port());
  std::vector<std::unique_ptr<Process>> hosts;
  for (const char* node : {"0", "1", "1"}) {  // of three ranks; rank 2 does not start
    hosts.push_back(std::make_unique<Process>(
        job.words("train", "--nproc 1 --nodes 3 --rendezvous 127.0.0.1:" + port + " --node-rank " +
                               std::string(node)),
        job.how()));
  }
  for (const auto& host : hosts) {
    const auto ran = host->wait();
    INFO(ran.err);
    CHECK(ran.status == 2);
    CHECK_THAT(ran.err, Contains("two have rank 1") && Contains("--node-rank"));
  }
}

TEST_CASE("keys that may differ from host to host do not count") {
  const TrainingJob job;
  TwoTrainings hosts(job, "--set cluster.threads=2 --set train.progress=false",
                     "--set cluster.timeout=19");
  const auto here = hosts.first().wait();
  INFO(here.err);
  CHECK(here.status == 0);
  CHECK(hosts.second().wait().status == 0);
}

TEST_CASE("a signal to one host ends all hosts with status 1") {
  for (const bool second : {false, true}) {
    const TrainingJob job;
    TwoTrainings hosts(job, kLong, kLong);
    hosts.first().wait_for("step 3/");
    (second ? hosts.second() : hosts.first()).signal(SIGTERM);
    const auto here = hosts.first().wait(), there = hosts.second().wait();
    INFO(here.err << there.err);
    CHECK(here.status == 1);
    CHECK(there.status == 1);
    CHECK_THAT(here.err, Contains("stopped by a signal"));
    CHECK_THAT(there.err, Contains("stopped by a signal"));
  }
}

TEST_CASE("only hosts that know the job's secret join") {
  const TrainingJob job;
  const std::string secret = "0123456789abcdef";
  const auto file = "--secret-file " + job.folder().write("secret", secret + "\n");
  using Variables = std::map<std::string, std::string>;
  for (const auto& variables : {Variables{}, {{"PERIGEE_SECRET", secret + "0"}}}) {
    TwoTrainings hosts(job, file, "", variables);
    const auto stranger = hosts.second().wait();
    INFO(stranger.err);
    CHECK(stranger.status == 2);
    CHECK_THAT(stranger.err, Contains("rank 1 must know the job's secret (PERIGEE_SECRET or "
                                      "--secret-file), but the store refuses it"));
    hosts.first().signal(SIGTERM);  // it waits for rank 1
    CHECK(hosts.first().wait().status == 1);
  }
  const TrainingJob trained;
  TwoTrainings hosts(trained, file, "", {{"PERIGEE_SECRET", secret}});
  const auto here = hosts.first().wait();
  INFO(here.err);
  CHECK(here.status == 0);
  CHECK(hosts.second().wait().status == 0);
  CHECK_THAT(here.err, !Contains("has no secret"));
}

TEST_CASE("a job over several hosts without a secret warns once with the remedy") {
  const TrainingJob job;
  TwoTrainings hosts(job, "", "");
  const auto here = hosts.first().wait(), there = hosts.second().wait();
  INFO(here.err);
  CHECK(here.status == 0);
  CHECK_THAT(here.err, Contains("the job has no secret") && Contains("--secret-file"));
  CHECK_THAT(there.err, !Contains("has no secret"));
}

TEST_CASE("an interface that a host lacks is an error that lists those it has") {
  const TrainingJob job;
  CHECK_THAT(job.refused("train", "--nproc 2 --interface eth99"),
             Contains("eth99") && Contains("one of") && Contains("lo"));
}
