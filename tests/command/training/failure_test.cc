// Failures of a training run: one error, no file lost, no process or file left over.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

TEST_CASE("a job that is far too large is refused before its ops run for their memory") {
  const TrainingJob job;
  const auto begin = std::chrono::steady_clock::now();
  const auto text = job.refused(
      "train",
      "--strategy ddp --set data.text=[] --set data.synthetic=true --set data.sequence=8000000");
  CHECK_THAT(text, Contains("a plan must fit the available memory, but rank 0 needs"));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  CHECK(!fs::exists(job.output()));
}

TEST_CASE("invalid jobs and data are refused with the key to change") {
  const TrainingJob job;
  const auto& folder = job.folder();
  CHECK_THAT(job.refused("train", "--set data.text=['/no/such.txt']"), Contains("/no/such.txt"));
  CHECK_THAT(job.refused("train", "--set data.text=[]  --set data.tokens=['" +
                                      folder.write("odd.bin", "abc") + "']"),
             Contains("odd.bin"));
  std::string ids;
  for (int i = 0; i < 4000; ++i) ids += std::string("\xff\x03", 2);
  CHECK_THAT(job.refused("train", "--set data.text=[] --set data.tokens=['" +
                                      folder.write("ids.bin", ids) + "'] --set model.vocab=256"),
             Contains("ids.bin") && Contains("1023"));
  CHECK_THAT(job.refused("train", "--set data.text=['" + folder.write("tiny.txt", "abc") + "']"),
             Contains("tokens"));
  CHECK_THAT(job.refused("train", "--nproc 9", 3), Contains("batch.global") && Contains("9 ranks"));
  CHECK_THAT(job.refused("train", "--nproc 2 --set batch.micro=3"), Contains("batch"));
  CHECK_THAT(job.refused("train", "--set train.steps=0"), Contains("steps"));
  CHECK_THAT(job.refused("train", "--set model.heads=5"), Contains("heads"));
  CHECK_THAT(job.refused("train", "--set train.output=" + folder.write("file", "") + "/run", 1),
             Contains("file/run"));
  CHECK_THAT(job.refused("train",
                         "--set optimizer.lr=1e30 --set optimizer.clip_norm=0 "
                         "--set train.steps=50",
                         1),
             Contains("loss must be finite"));
}

TEST_CASE("invalid strategies are refused at their line, also on several ranks") {
  const TrainingJob job;
  const auto strategy = [&](const std::string& text) {
    return "--script-seconds 0.5 --strategy " + job.folder().write("s.lua", text);
  };
  for (const std::string ranks : {"--nproc 1 ", "--nproc 2 "}) {
    CHECK_THAT(job.refused("train", ranks + strategy("\nerror('no way')")),
               Contains("s.lua:2:") && Contains("no way"));
    CHECK_THAT(job.refused("train", ranks + strategy("return function() while true do end end")),
               Contains("s.lua:1:") && Contains("0.5 s"));
    CHECK_THAT(job.refused("train", ranks + strategy("return function(job) return job.nam end")),
               Contains("s.lua"));
    CHECK_THAT(job.refused("train", ranks + strategy("return { { 'parallel_mode', { { 'tensor', "
                                                     "3 } } } }")),
               Contains("3"));
  }
}

TEST_CASE("without a GPU device = \"cuda\" is refused with advice, and nothing is written") {
  if (fs::exists("/dev/nvidiactl") || fs::exists("/dev/dxg")) {
    WARN("this machine has a GPU, so what its lack does was not tested");
    return;
  }
  const TrainingJob job;
  for (const std::string ranks : {"", "--nproc 1 ", "--nproc 2 "}) {
    CHECK_THAT(job.refused("train", ranks + "--set cluster.device=cuda"),
               Contains("[cuda] device = \"cuda\" needs ") && Contains("or use device = \"cpu\""));
  }
  CHECK_FALSE(fs::exists(job.output()));
  // A plan can be made for a machine with GPUs.
  CHECK_THAT(job.good("plan", "--set cluster.device=cuda").out, Contains("data"));
}

TEST_CASE("a mesh that does not fit is refused with one that does") {
  const TrainingJob job;
  const auto refused = [&](const std::string& axes, int ranks, const std::string& command) {
    const auto file = job.folder().write("mesh.lua",
                                         "return { { 'parallel_mode', {" + axes + "} } }");
    return job.refused(command, "--nproc " + std::to_string(ranks) + " --strategy " + file);
  };
  // A product that is not the number of ranks.
  CHECK_THAT(refused("{ 'data', 2 }, { 'tensor', 3 }", 4, "train"),
             Contains("the 4 ranks of this run, but they multiply to 6") && Contains("--nproc"));
  CHECK_THAT(refused("{ 'tensor', 2 }", 3, "plan"), Contains("no data axis"));
  CHECK_THAT(refused("{ 'tensor', 2 }, order = { 0, 1, 2 }", 2, "plan"),
             Contains("2 ranks, but got 3"));
  // Rows of different lengths.
  CHECK_THAT(refused("{ 'data', 2 }, { 'tensor' }", 2, "train"), Contains("{name, size}"));
  CHECK_THAT(refused("{ 'data', 2 }, 'tensor'", 2, "plan"), Contains("{name, size}"));
  CHECK_THAT(refused("{ 'data', 2, 2 }", 2, "plan"), Contains("{name, size}"));
  CHECK_THAT(refused("{ 'data', 2 }, { 'tensor', 0 }", 2, "plan"), Contains("\"tensor\" has 0"));
  CHECK_THAT(refused("{ 'data', 2 }, { 'data', 2 }", 4, "plan"), Contains("twice"));
  CHECK(!fs::exists(job.output()));
}

TEST_CASE("a damaged checkpoint is refused by name, and all files are kept") {
  const TrainingJob job;
  job.good("train", "--nproc 2 --set train.checkpoint_every=2");
  const auto folder = job.output() + "/checkpoints/step-4";
  const auto file = folder + "/rank-0.safetensors";
  const auto content = read(file);
  const auto write = [&](const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  };
  auto broken = content;
  broken[broken.size() / 2] ^= 1;
  write(file, broken);
  CHECK_THAT(job.refused("train", "--nproc 2 --resume --set train.steps=5"),
             Contains("rank-0.safetensors"));
  CHECK_THAT(job.refused("evaluate"), Contains("rank-0.safetensors"));
  write(file, content.substr(0, content.size() / 2));
  CHECK_THAT(job.refused("sample"), Contains("rank-0.safetensors"));
  CHECK(run("export " + job.output() + " -o " + (job.folder() / "w"), job.how()).status == 2);
  CHECK(!fs::exists(job.folder() / "w"));
  write(file, content);
  const auto index = read(folder + "/index.json");
  write(folder + "/index.json", index.substr(0, index.size() / 2));
  CHECK_THAT(job.refused("train", "--resume --set train.steps=5"), Contains("step-4"));
  write(folder + "/index.json", index);
  const auto plan = read(job.output() + "/plan.json");
  write(job.output() + "/plan.json", plan.substr(0, plan.size() / 2));
  CHECK_THAT(job.refused("train", "--nproc 2 --resume --set train.steps=5"),
             Contains(job.output() + "/plan.json") && Contains("--strategy"));
  write(job.output() + "/plan.json", plan);
  // The previous checkpoint is complete.
  job.good("train", "--nproc 2 --set train.steps=5 --set train.output=" + (job.folder() / "other") +
                        " --resume " + job.output() + "/checkpoints/step-2");
}

TEST_CASE("a damaged file of tensors is refused by name") {
  const TrainingJob job;
  const std::string header = R"({"image":{"dtype":"F32","shape":[8,4],"data_offsets":[0,128]}})";
  const auto length = std::string{static_cast<char>(header.size())} + std::string(7, 0);
  const auto whole = length + header + std::string(128, 0);
  for (const auto& bytes :
       {std::string(), whole.substr(0, 20), whole.substr(0, whole.size() - 1), whole + "more",
        std::string(64, '\xff'), length + "x" + whole.substr(9)}) {
    const auto file = job.folder().write("images.safetensors", bytes);
    CHECK_THAT(job.refused("train", "--set data.text=[] --set data.tensors=['" + file + "']"),
               Contains("images.safetensors"));
  }
}

TEST_CASE("a full disk ends the job, and the older checkpoint is kept") {
  const TrainingJob job;
  // Ranks with one copy of the weights would need more shared memory than a file may have bytes.
  const std::string how = "--strategy ddp --nproc 2 --set train.checkpoint_every=1 ";
  job.good("train", how + "--set train.steps=2");
  auto full = job.how();
  full.file_bytes = 40'000;  // less than a rank's part of a checkpoint
  const auto resume = [&](const How& limits) {
    return Process(job.words("train", how + "--resume --set train.log_every=1000000 "
                                            "--set train.steps=2000"),
                   limits)
        .wait();
  };
  const auto ran = resume(full);
  INFO(ran.err);
  CHECK(ran.status == 1);
  // Two changed keys, the job, the first step, and one error.
  CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') <= 6);
  CHECK_THAT(ran.err, Contains("step-3.partial/rank-") && Contains("must be written, but: "));
  CHECK(names_in(job.output() + "/checkpoints") == std::vector<std::string>{"step-1", "step-2"});
  job.good("train", how + "--resume --set train.steps=4");
  CHECK(job.losses().size() == 4);
}

TEST_CASE("a disk full of metrics ends the job, and complete lines are kept") {
  const TrainingJob job;
  const std::string small = "--set model.layers=1 --set model.width=16 --set data.sequence=8 ";
  job.good("train", small + "--set train.steps=2 --set train.checkpoint_every=1");
  auto full = job.how();
  full.file_bytes = 40'000;  // enough for all but the metrics of 200 steps
  const auto ran = Process(job.words("train", small + "--resume --set train.checkpoint_every=0 "
                                                      "--set train.log_every=1000000 "
                                                      "--set train.steps=2000"),
                           full)
                       .wait();
  INFO(ran.err);
  CHECK(ran.status == 1);
  CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') <= 5);
  CHECK_THAT(ran.err, Contains(job.output() + "/metrics.jsonl must be written, but: "));
  CHECK(read(job.output() + "/metrics.jsonl").ends_with("}\n"));
  CHECK(job.losses().size() > 20);
  CHECK(job.checkpoints() == std::vector<int>{1, 2});
  job.good("train", small + "--resume --set train.steps=4");
  CHECK(job.losses().size() == 4);
}

TEST_CASE("a rank that dies ends the job with its number, and the run can be resumed") {
  for (const int victim : {0, 1}) {
    const TrainingJob job;
    Process process(job.words("train", "--nproc 2 --set train.checkpoint_every=1" + kLong),
                    job.how());
    process.wait_for("step 3/");
    const auto ranks = children(process.pid());
    REQUIRE(ranks.size() == 2);
    const double begin = now();
    ::kill(ranks[victim], SIGKILL);
    const auto ran = process.wait();
    CHECK(now() - begin < 5);
    CHECK(ran.status == 1);
    const auto said = "rank " + std::to_string(victim) + " was killed by signal 9";
    CHECK_THAT(ran.err, Contains(said));
    CHECK_THAT(ran.err.substr(ran.err.find(said)), !Contains("[communicator]"));
    const auto steps = std::to_string(job.losses().size() + 2);
    job.good("train", "--nproc 2 --resume --set train.steps=" + steps);
  }
}

TEST_CASE("a rank that crashes prints its stack, and the job ends with its number") {
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != text.npos;
  };
  std::string stack;
  // A stack ends in a product of MKL, whose code cannot be unwound, if the signal comes there.
  for (int tries = 0; tries < 10 && !has(stack, "libperigee_torch.so("); ++tries) {
    const TrainingJob job;
    Process process(job.words("train", "--nproc 2" + kLong), job.how());
    process.wait_for("step 3/");
    const auto ranks = children(process.pid());
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[1], SIGSEGV);
    const auto ran = process.wait();
    CHECK(ran.status == 1);
    const std::string crashed = "perigee: rank 1 has crashed with signal 11; its stack:\n";
    const auto at = ran.err.find(crashed);
    REQUIRE(at != ran.err.npos);
    stack = ran.err.substr(at + crashed.size());
    CHECK_THAT(stack, Contains("rank 1 was killed by signal 11"));
  }
  CHECK_THAT(stack, Contains("libperigee_torch.so(") && Contains("/perigee(+"));
}

TEST_CASE("a rank that stops responding ends the job with its number and the time-out") {
  for (const int victim : {0, 1}) {  // rank 0 has the store by which ranks find each other
    const TrainingJob job;
    Process process(
        job.words("train", "--nproc 3 --set batch.global=6 --set cluster.timeout=2" + kLong),
        job.how());
    process.wait_for("step 3/");
    const auto ranks = children(process.pid());
    REQUIRE(ranks.size() == 3);
    ::kill(ranks[victim], SIGSTOP);
    const double begin = now();
    const auto ran = process.wait();
    INFO(ran.err);
    CHECK(now() - begin < 9);  // 3.5 s on an idle machine
    CHECK(ran.status == 1);
    const auto error = ran.err.substr(ran.err.find("perigee: "));
    CHECK(std::count(error.begin(), error.end(), '\n') == 1);
    CHECK_THAT(error,
               Contains("within 2 s (cluster.timeout)") &&
                   Contains("rank " + std::to_string(victim) +
                            (victim == 0 ? ", which has the store," : "") + " does not answer"));
  }
}

TEST_CASE("a port in use that another launcher chose is named") {
  const TrainingJob job;
  auto how = job.how();
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(taken, 1) == 0);
  ::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const auto port = std::to_string(ntohs(address.sin_port));
  how.environment.insert({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "0"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", port}});
  const auto ran = run("train " + job.file(), how);
  CHECK(ran.status == 1);
  CHECK(is_short(ran.err));
  CHECK_THAT(ran.err, Contains("port " + port + " of 127.0.0.1, but got: it is in use") &&
                          Contains("MASTER_PORT"));
  ::close(taken);
}

TEST_CASE("a rank that does not connect is named") {
  const TrainingJob job;
  const auto port = free_port();
  const auto ran = run(
      std::vector<std::string>{"train", job.file(), "--set", "cluster.timeout=1", "--nodes", "2",
                               "--nproc", "2", "--rendezvous", "127.0.0.1:" + std::to_string(port)},
      job.how());
  CHECK(ran.status == 1);
  CHECK(is_short(ran.err));
  CHECK_THAT(ran.err, Contains("all 4 ranks must meet") && Contains("rank 2, 3 did not join"));
  CHECK(!fs::exists(job.output()));
}
