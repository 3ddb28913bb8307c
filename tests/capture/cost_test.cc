// Memory and time of the capture of a large model, measured in a process of its own.
#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "capture/models/models.h"
#include "tests/capture/support.h"

namespace perigee::test {
namespace {

// GPT-3 (Brown et al. 2020).
constexpr const char* kGpt3 = R"(
[model]
kind = "gpt"
layers = 96
width = 12288
heads = 96
vocab = 50257
positions = 2048
[data]
synthetic = true
sequence = 2048
)";

// Returns a value of /proc/self/status in bytes.
double memory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    double kilobytes = 0;
    if (word == key + ":" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

// Seconds of processor time that this process has used.
double processor_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Cost {
  double parameters = 0;
  double nodes = 0;
  double gradients = 0;
  double deferred_bytes = 0;   // memory of the module
  double capture_bytes = 0;    // peak above the memory before the module was built
  double capture_seconds = 0;  // of processor time
};

// Runs the measurement below in a fresh process.
Cost measured() {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "'" + self + "' 'measure: capture of GPT-3'";
  std::unique_ptr<FILE, int (*)(FILE*)> out(popen(command.c_str(), "r"), pclose);
  REQUIRE(out);
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, out.get())) text.append(buffer, n);
  INFO(text);
  const auto begin = text.find("measured ");
  REQUIRE(begin != std::string::npos);
  Cost cost;
  std::istringstream(text.substr(begin + 9)) >> cost.parameters >> cost.nodes >> cost.gradients >>
      cost.deferred_bytes >> cost.capture_bytes >> cost.capture_seconds;
  return cost;
}

}  // namespace

// Hidden: the test below runs it in a process.
TEST_CASE("measure: capture of GPT-3", "[.]") {
  const auto job = job::Job::parse(kGpt3, "gpt3.toml");
  const double before = memory("VmRSS");
  const auto built = make_model(job.model, job.data.sequence);
  const double deferred_bytes = memory("VmRSS") - before;
  double parameters = 0;
  for (const auto& p : built.model.module->parameters()) parameters += double(p.numel());
  Batch batch;
  for (const auto& field : built.batch) {
    batch[field.name] = torch::empty({8, field.shape.at(0)},
                                     at::device(at::kMeta).dtype(at::kLong));
  }
  const double start = processor_time();
  const auto captured = capture(*built.model.module, batch, built.model.forward);
  const double seconds = processor_time() - start;
  double gradients = 0;
  for (const auto& output : captured.graph.outputs) {
    gradients += output.kind == graph::Output::Kind::gradient;
  }
  std::printf("measured %.0f %zu %.0f %.0f %.0f %.3f\n", parameters, captured.graph.nodes.size(),
              gradients, deferred_bytes, memory("VmHWM") - before, seconds);
  std::fflush(stdout);
}

TEST_CASE("96 layers and 175 billion parameters are captured in 0.5 s and 200 MB") {
  // The least of three measurements: a loaded machine slows some of them.
  auto cost = measured();
  for (int i = 0; i < 2 && cost.capture_seconds >= 0.5; ++i) {
    const auto again = measured();
    if (again.capture_seconds < cost.capture_seconds) cost = again;
  }
  CAPTURE(cost.nodes, cost.deferred_bytes, cost.capture_bytes, cost.capture_seconds);
  CHECK(cost.parameters > 174.5e9);
  CHECK(cost.gradients == 96 * 12 + 4);
  CHECK(cost.deferred_bytes < 50e6);
  CHECK(cost.capture_bytes < 200e6);
  CHECK(cost.capture_seconds < 0.5);
}

}  // namespace perigee::test
