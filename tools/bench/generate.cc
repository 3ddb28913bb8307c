// The cost of a token that `perigee sample` generates, by its position: a GPT of 29.4M parameters on
// one CPU rank, a text at a time. Leaves with 1 where a token at position 1,024 costs more than the
// goal times one at position 64.
//
// Usage: bench_generate [ROUNDS], default 5.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <vector>

#include "tools/bench/command.h"
#include "tools/bench/median.h"
#include "train/generate/generator.h"

namespace {

using perigee::bench::median;

using perigee::train::Generator;

constexpr double kGoal = 1.5;
constexpr int kTokens = 16;  // timed at each position

constexpr std::string_view kModel = R"([model]
kind = "gpt"
layers = 8
width = 512
heads = 8
vocab = 8192
[data]
synthetic = true
sequence = 1088
)";

double seconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns the seconds of each of the tokens that follow a text of `length` tokens.
std::vector<double> times_after(Generator& generator, int64_t length) {
  std::vector<int64_t> text(static_cast<size_t>(length));
  for (size_t i = 0; i < text.size(); ++i) text[i] = int64_t(i * 7919 % 8192);
  generator.fill(0, text);
  std::vector<double> times;
  const std::vector<std::optional<int64_t>> token = {5};
  for (int i = 0; i < kTokens; ++i) times.push_back(seconds([&] { generator.extend(token); }));
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 5;
  const perigee::bench::Command command("generate");
  const auto file = command.write(
      "job.toml", fmt::format("{}[batch]\nglobal = 1\n[train]\nsteps = 1\nvalidate_every = 0\n"
                              "[cluster]\ndevice = \"cpu\"\n",
                              kModel));
  const auto run = std::filesystem::path(file).replace_filename("run").string();
  command.run(fmt::format("train {} --set train.output={}", file, run));
  perigee::train::Task task;
  task.job = perigee::job::Job::load(file);
  Generator generator(task, {.checkpoint = run});
  std::vector<double> early, late;
  for (int round = 0; round < rounds; ++round) {
    for (const auto time : times_after(generator, 63)) early.push_back(time);
    for (const auto time : times_after(generator, 1023)) late.push_back(time);
  }
  const auto ratio = median(late) / median(early);
  fmt::print("position 64: {:.2f} ms, position 1,024: {:.2f} ms, ratio {:.3f} (goal {})\n",
             1e3 * median(early), 1e3 * median(late), ratio, kGoal);
  return ratio <= kGoal ? 0 : 1;
}
