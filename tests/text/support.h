// Tokenizers that tests compare with PyPI's (make_tokenizers.py).
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.h"

namespace perigee::test {

inline std::string build_folder() {
  const char* build = std::getenv("PERIGEE_BUILD");
  return build ? build : "build";
}

// Runs a script that installs packages of PyPI. Returns whether they can be had.
inline bool run_maker(const std::string& command) {
  const int status = std::system(command.c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code != 0 && code != 77) throw std::runtime_error(command + " failed");
  return code == 0;
}

// Writes tokenizers, a text, and their ids and decoded texts to the folder. Returns whether Python
// and its packages can be had.
inline bool make_tokenizers(const Folder& folder) {
  const auto maker = build_folder() + "/make_sentencepiece";
  std::string model;
  if (std::filesystem::exists(maker)) {
    std::string text;
    for (int i = 0; i < 50; ++i) text += "the quick brown fox jumps over the lazy dog and sleeps\n";
    const auto input = folder.add("sentences.txt", text);
    if (std::system(fmt::format("{} {} {}", maker, input, folder.at("small")).c_str()) == 0) {
      model = folder.at("small.model");
    }
  }
  return run_maker(fmt::format("python3 tests/text/make_tokenizers.py {} {}/python/tokenizers {}",
                               folder.path(), build_folder(), model));
}

}  // namespace perigee::test
