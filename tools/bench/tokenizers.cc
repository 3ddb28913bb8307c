// Time to encode a mixed text of 1 MB on one thread, for a byte-level BPE, a BPE with byte
// fallback, a WordPiece and a Unigram tokenizer; make_tokenizers.py trains them, and times PyPI's
// tokenizers with RAYON_NUM_THREADS=1 on the same text, in turn. The ids must be equal.
//   bench_tokenizers   (from the source folder; python3 with pip)
// Goal: at most the time of PyPI's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "text/tokenizer.h"

using namespace perigee;

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Returns the output of a command.
std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[256];
  while (pipe && std::fgets(buffer, sizeof buffer, pipe)) text += buffer;
  if (!pipe || ::pclose(pipe) != 0) {
    std::fprintf(stderr, "%s failed\n", command.c_str());
    std::exit(1);
  }
  return text;
}

}  // namespace

int main() {
  const auto folder =
      (std::filesystem::temp_directory_path() / "perigee-bench-tokenizers").string();
  std::filesystem::create_directories(folder);
  const auto python = fmt::format(
      "python3 tests/text/make_tokenizers.py {} build/python/tokenizers", folder);
  output_of(python);
  const auto text = read_file(folder + "/text.txt", "bench");
  for (const char* name : {"gpt2", "llama3", "qwen", "llama2", "bert", "t5"}) {
    const auto file = fmt::format("{}/{}.json", folder, name);
    const auto ids = nlohmann::json::parse(
                         read_file(fmt::format("{}/{}.ids", folder, name), "bench"))
                         .get<std::vector<int64_t>>();
    double own = 1e9, rival = 1e9;
    for (int round = 0; round < 3; ++round) {
      rival = std::min(
          rival,
          std::stod(output_of(fmt::format("RAYON_NUM_THREADS=1 {} --time {}", python, name))));
      const auto tokenizer = text::make_tokenizer(file);
      std::vector<int64_t> found;
      own = std::min(own, seconds_of([&] { found = tokenizer->encode(text); }));
      if (found != ids) {
        fmt::print(stderr, "{}: the ids differ\n", name);
        return 1;
      }
    }
    fmt::print("{}: {:.1f} ms, PyPI's tokenizers {:.1f} ms, ratio {:.3f}\n", name, 1e3 * own,
               1e3 * rival, own / rival);
  }
}
