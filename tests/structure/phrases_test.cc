// The phrases that scripts/lint refuses (scripts/phrases.txt).
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

// Returns whether scripts/lint refuses a file that holds the line.
bool is_refused(const std::string& line) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("perigee-phrases-" + std::to_string(getpid()) + ".md");
  std::ofstream(path) << line << "\n";
  const auto command = "scripts/lint --phrases " + path.string() + " > /dev/null";
  const int status = std::system(command.c_str());
  std::filesystem::remove(path);
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) <= 1));
  return WEXITSTATUS(status) == 1;
}

}  // namespace

TEST_CASE("lint refuses the phrases that have a standard term") {
  for (const char* line : {
           "foretell a step of the job's plan",
           "nothing is copied but what others read whole",
           "Microbatches in turns",
           "Made again",
           "Forward ops that run again in the backward pass",
           "is computed behind all else of the stage",
           "the decay from which it comes to the last value",
           "receives are those of a pipeline's stages: use them",
           "once a step, behind the last backward pass",
           "seconds that a step takes beyond `longest` times microbatches",
           "What no order of split backward passes is below",
           "how much of it shows beside a stage's ops",
           "messages that come before they are wanted",
           "When stages that are not alike end a step",
           "By how much the simulator differs from the model",
           "what stands before its blocks, one of them, and what stands behind",
           "so that no stages wait for each other for ever",
           "What it takes for propagation to come to shardings that somebody else has chosen",
           "two blocks tell the time and memory of any number",
           "Tell ranks apart whose groups lie on other levels",
           "Axes of a kind are told apart by a number",
           "Indexing: the indexed dim stays whole",
           "rank 1, 2 did not come",
       }) {
    INFO(line);
    CHECK(is_refused(line));
  }
}

TEST_CASE("lint accepts the standard terms") {
  for (const char* line : {
           "predict one step of the job's plan",
           "Activation checkpointing: forward ops recomputed in the backward pass",
           "Lower bound on the bubble of any split-backward schedule",
           "exposed communication (not hidden by compute)",
           "Step time of a heterogeneous pipeline",
           "Returns whether a later stage receives the value.",
       }) {
    INFO(line);
    CHECK_FALSE(is_refused(line));
  }
}
