// A power cut at each moment of a job: it resumes from the newest checkpoint that was complete.
#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "tests/command/faults/power_cut.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
namespace fs = std::filesystem;

namespace {

const std::string kWords =
    " --nproc 2 --set model.layers=1 --set model.width=16 --set data.sequence=8 "
    "--set batch.global=2 --set train.checkpoint_every=2 --set train.output=";

// A job of two ranks with checkpoints of steps 2 and 4, all of whose changes of files are recorded.
class RecordedJob {
 public:
  RecordedJob() {
    const char* build = std::getenv("PERIGEE_BUILD");
    const auto shim =
        fs::absolute(std::string(build ? build : "build") + "/libplugin_writes.so").string();
    REQUIRE(fs::exists(shim));
    fs::create_directories(disk_);
    job_.folder().write("log", "");
    auto how = job_.how();
    how.environment["LD_PRELOAD"] = shim;
    how.environment["WRITES_OF"] = disk_;
    how.environment["WRITES_LOG"] = job_.folder() / "log";
    const auto ran = train("", how);
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    changes_ = read_changes(job_.folder() / "log", disk_);
    losses_ = losses();
    REQUIRE(losses_.size() == 4);
  }

  const std::vector<Change>& changes() const { return changes_; }

  // Cuts the power and trains on. Returns the first thing that is wrong; "" for none.
  std::string try_out(size_t count, const std::function<Left(size_t)>& left) const {
    write_files(files_after_cut(changes_, count, left), disk_);
    const auto ran = train(" --resume-if-any", job_.how());
    if (ran.status != 0) return "the job does not start: " + ran.err;
    const int from = complete_before(count);
    const auto says = [&](const char* text) { return ran.err.find(text) != ran.err.npos; };
    // A newer checkpoint that is whole although it was not synced is as good.
    const bool done = says("all 4 steps are done");
    if ((from == 4 && !done) || (from == 2 && !done && !says("step 3/4"))) {
      return "the checkpoint of step " + std::to_string(from) + " is lost: " + ran.err;
    }
    const auto names = names_in(disk_ + "/run/checkpoints");
    if (std::find(names.begin(), names.end(), "step-4") == names.end()) return "no last checkpoint";
    // The line of the last step is written after its checkpoint, and is lost where that is all.
    const auto reached = losses();
    const size_t least = done ? losses_.size() - 1 : losses_.size();
    if (reached.size() < least || reached.size() > losses_.size()) return "other steps";
    if (!std::equal(reached.begin(), reached.end(), losses_.begin())) return "other losses";
    return "";
  }

 private:
  Ran train(const std::string& more, const How& how) const {
    return run("train " + job_.file() + kWords + disk_ + "/run" + more, how);
  }

  // Returns the losses of the whole lines.
  std::vector<double> losses() const {
    std::vector<double> result;
    std::istringstream lines(read(disk_ + "/run/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (row.is_object() && row.contains("loss")) result.push_back(row["loss"]);
    }
    return result;
  }

  // Returns the step of the newest checkpoint whose last file was written and synced; 0 for none.
  int complete_before(size_t count) const {
    int step = 0;
    std::string renamed;
    for (size_t k = 0; k < count; ++k) {
      const auto& change = changes_[k];
      if (change.kind == ChangeKind::rename && change.target.ends_with("/COMPLETE")) {
        renamed = fs::path(change.target).parent_path().string();
      }
      if (change.kind == ChangeKind::sync && !renamed.empty() && change.path == renamed) {
        step = std::stoi(renamed.substr(renamed.rfind('-') + 1));
      }
    }
    return step;
  }

  TrainingJob job_;
  const std::string disk_ = job_.folder() / "disk";
  std::vector<Change> changes_;
  std::vector<double> losses_;
};

// Nothing, half or all of each change, by chance.
std::function<Left(size_t)> by_chance(unsigned seed) {
  return [seed](size_t k) {
    return static_cast<Left>(std::minstd_rand(seed + 7919 * static_cast<unsigned>(k) + 1)() % 3);
  };
}

const std::function<Left(size_t)> kNothing = [](size_t) { return Left::nothing; };
const std::function<Left(size_t)> kAll = [](size_t) { return Left::all; };

}  // namespace

TEST_CASE("files after a power cut: what was synced, and what is left of the rest") {
  using enum ChangeKind;
  const std::vector<Change> changes = {
      {make_folder, "a", "", 0, ""}, {create, "a/x", "", 0, ""},  {write, "a/x", "", 0, "12345678"},
      {sync, "a/x", "", 0, ""},      {sync, "a", "", 0, ""},      {sync, ".", "", 0, ""},
      {rename, "a/x", "a/y", 0, ""}, {write, "a/y", "", 8, "90"}, {remove, "a/y", "", 0, ""}};
  CHECK(files_after_cut(changes, 9, kAll) == Files{{"a/", ""}});
  CHECK(files_after_cut(changes, 9, kNothing) == Files{{"a/", ""}, {"a/x", "12345678"}});
  CHECK(files_after_cut(changes, 5, kNothing).empty());  // the folder's own name was not synced
  const auto half = [](size_t k) { return k == 7 ? Left::half : Left::all; };
  CHECK(files_after_cut(changes, 8, half) == Files{{"a/", ""}, {"a/y", "123456789"}});
  CHECK(files_after_cut(changes, 3, half) == Files{{"a/", ""}, {"a/x", "12345678"}});
}

TEST_CASE("a power cut loses no complete checkpoint") {
  const RecordedJob job;
  // After each rename that makes a checkpoint visible, and after the last sync of each.
  std::vector<size_t> cuts;
  for (size_t k = 0; k < job.changes().size(); ++k) {
    const auto& change = job.changes()[k];
    if (change.kind == ChangeKind::rename && change.target.ends_with("COMPLETE")) {
      cuts.insert(cuts.end(), {k + 1, k + 2});
    }
  }
  REQUIRE(cuts.size() == 4);
  for (const auto count : cuts) {
    const auto wrong = job.try_out(count, kNothing);
    INFO("after change " << count << ": " << wrong);
    CHECK(wrong.empty());
  }
}

TEST_CASE("a power cut at any moment, with any part of what was not synced", "[.long]") {
  const RecordedJob job;
  for (size_t count = 0; count <= job.changes().size(); ++count) {
    for (const auto& left : {kNothing, kAll, by_chance(1), by_chance(2)}) {
      const auto wrong = job.try_out(count, left);
      INFO("after change " << count << ": " << wrong);
      CHECK(wrong.empty());
    }
  }
}
