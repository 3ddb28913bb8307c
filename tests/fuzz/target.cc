#include "tests/fuzz/target.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace perigee::fuzz {
namespace {

constexpr size_t kLongest = 20'000;  // bytes of a message, which may quote the input

void check_sentence(std::string_view text, std::string_view input) {
  const bool has_area = text.starts_with("[") && text.find("] ") != std::string_view::npos;
  require(has_area && text.size() > text.find("] ") + 10, fmt::format("no sentence: {}", text));
  require(text.size() <= kLongest, fmt::format("a message of {} bytes", text.size()));
  const std::string_view defect = "this is a defect of Perigee";  // fuzzers find and quote it
  require(text.find(defect) == text.npos || input.find("defect of") != input.npos,
          fmt::format("an input is called a defect: {}", text));
  const bool plain = std::ranges::none_of(
      text, [](unsigned char c) { return (c < ' ' && c != '\n' && c != '\t') || c == 0x7f; });
  require(plain, "a message has control characters, which a terminal would obey");
}

class Folder {
 public:
  Folder() {
    // In memory where the system has such a folder: targets write a file for each input.
    const std::filesystem::path memory = "/dev/shm";
    std::error_code ignored;
    const auto base = std::filesystem::is_directory(memory, ignored)
                          ? memory
                          : std::filesystem::temp_directory_path();
    path_ = (base / fmt::format("perigee-fuzz-{}", getpid())).string();
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

std::map<std::string, Target>& targets() {
  static std::map<std::string, Target> all;
  return all;
}

void feed(Target target, std::string_view input) {
  try {
    target(input);
  } catch (const Error& error) {
    check_sentence(error.what(), input);
  }
}

const std::string& scratch_folder() {
  static const Folder folder;
  return folder.path();
}

std::string scratch_file(const std::string& name, std::string_view input) {
  auto path = scratch_folder() + "/" + name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(input.data(), static_cast<std::streamsize>(input.size()));
  return path;
}

}  // namespace perigee::fuzz
