#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "base/files/durable.h"
#include "base/files/file.h"
#include "base/log.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/support.h"
#include "tests/support/temporary_folder.h"

namespace fs = std::filesystem;
using namespace perigee;
using namespace perigee::checkpoint;
using test::error_of;
using test::Folder;
using test::is_right;
using test::kMesh;
using test::kTensors;
using test::Sharded;
using test::values_of;
using test::whole_of;
using test::write_checkpoint;

namespace {

bool all_right(const checkpoint::Checkpoint& checkpoint) {
  bool right = true;
  for (const auto& tensor : kTensors) right = right && is_right(checkpoint, whole_of(tensor));
  return right;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return {names.begin(), names.end()};
}

using Names = std::vector<std::string>;

void flip_byte(const std::string& path, int64_t from_end) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-from_end, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(old ^ 1));
}

class Warnings : public log::Sink {
 public:
  Warnings() { log::set_sink(this); }
  ~Warnings() override { log::set_sink(nullptr); }
  void write(log::Level, std::string_view text) override { lines.emplace_back(text); }
  Names lines;
};

}  // namespace

TEST_CASE("each piece is written by one of its holders, and the bytes are balanced over ranks") {
  const auto mesh = mesh::parse_axes("data=4,tensor=2");
  std::vector<checkpoint::Holding> holdings;
  for (int i = 0; i < 64; ++i) {
    const Sharded tensor{fmt::format("w{}", i), {16, 8 + i % 3}, i % 2 ? "R,S0" : "R,R"};
    const auto more = checkpoint::holdings_of(whole_of(tensor),
                                              mesh::parse_placements(tensor.placements), mesh);
    CHECK(more.size() == (i % 2 ? 2u : 1u));
    CHECK(more[0].ranks == (i % 2 ? std::vector<int64_t>{0, 1, 2, 3}
                                  : std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
    holdings.insert(holdings.end(), more.begin(), more.end());
  }
  const auto owner = checkpoint::owners(holdings);
  std::vector<int64_t> bytes(8);
  for (size_t i = 0; i < holdings.size(); ++i) {
    const auto& ranks = holdings[i].ranks;
    CHECK(std::find(ranks.begin(), ranks.end(), owner[i]) != ranks.end());
    bytes[owner[i]] += 8 * holdings[i].part.ranges[0].length * holdings[i].part.ranges[1].length;
  }
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  CHECK(*most - *least <= 8 * 16 * 10);  // at most one tensor
  CHECK(error_of([&] {
          checkpoint::holdings_of(whole_of({"w", {4}, ""}), mesh::parse_placements("P,R"), mesh);
        }) == "[checkpoint] w must be replicated or sharded, but its placements are P,R");
}

TEST_CASE("elements of different tensors, steps and places have different values") {
  std::set<double> seen;
  size_t all = 0;
  for (const auto& tensor : kTensors) {
    for (const int64_t step : {1, 2}) {
      const auto values = values_of(whole_of(tensor), step);
      seen.insert(values.begin(), values.end());
      all += values.size();
    }
  }
  CHECK(seen.size() == all);
}

TEST_CASE("any part of a tensor is read back, however the tensor was sharded") {
  Folder folder;
  write_checkpoint(folder.path(), 7, kMesh, kTensors);
  const checkpoint::Checkpoint checkpoint(checkpoint::newest_checkpoint(folder.path()));
  CHECK(checkpoint.info().step == 7);
  CHECK(checkpoint.info().samples == 224);
  CHECK(checkpoint.info().plan_hash == "plan");
  CHECK(checkpoint.info().state == "{\"lr_scale\":0.5}");
  CHECK(checkpoint.tensors().size() == kTensors.size());
  CHECK(checkpoint.find("exp_avg:fc.weight")->weight == false);
  CHECK(checkpoint.find("nothing") == nullptr);
  checkpoint.verify();
  std::mt19937 random(1);
  for (const auto& tensor : kTensors) {
    CHECK(is_right(checkpoint, whole_of(tensor)));
    for (int i = 0; i < 50; ++i) {
      auto part = whole_of(tensor);
      for (auto& range : part.ranges) {
        const auto size = range.length;
        range.begin = static_cast<int64_t>(random() % size);
        range.length = static_cast<int64_t>(random() % (size - range.begin + 1));
      }
      INFO(tensor.name << " " << i);
      CHECK(is_right(checkpoint, part));
    }
  }
}

TEST_CASE("checkpoints are read by more or fewer ranks than wrote them") {
  for (const auto* mesh : {"data=1,tensor=1", "data=3,tensor=2"}) {
    Folder folder;
    write_checkpoint(folder.path(), 1, mesh, kTensors);
    const checkpoint::Checkpoint checkpoint(checkpoint::find_checkpoint(folder.path()));
    const auto other = mesh::parse_axes("data=1,tensor=3");
    for (const auto& tensor : kTensors) {
      for (const auto& holding : checkpoint::holdings_of(
               whole_of(tensor), mesh::parse_placements(tensor.placements), other)) {
        CHECK(is_right(checkpoint, holding.part));
      }
    }
  }
}

TEST_CASE("a checkpoint's folder holds its files and no temporary file") {
  Folder folder;
  write_checkpoint(folder.path(), 3, "data=2", {{"w", {4}, "S0"}});
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-3"});
  CHECK(names_in(folder.at("checkpoints/step-3")) ==
        Names{"COMPLETE", "index.json", "rank-0.safetensors", "rank-1.safetensors"});
  const checkpoint::SafetensorsFile file(folder.at("checkpoints/step-3/rank-1.safetensors"));
  CHECK(file.tensors().front().name == "w[2:4]");
}

TEST_CASE("only the newest checkpoints are kept, and foreign files stay") {
  Folder folder;
  for (const int64_t step : {1, 2, 10, 9}) {
    write_checkpoint(folder.path(), step, kMesh, kTensors, 2);
    folder.add("checkpoints/step-1/notes.txt", "mine");
  }
  // Step 10 was set aside by the run that went on to 9; step 2 is the second newest.
  CHECK(names_in(folder.at("checkpoints")) ==
        Names{"step-1", "step-10.aside-1", "step-2", "step-9"});
  CHECK(names_in(folder.at("checkpoints/step-1")) == Names{"notes.txt"});
  CHECK(checkpoint::newest_checkpoint(folder.path()) == folder.at("checkpoints/step-9"));
}

TEST_CASE("a checkpoint replaces an older one of the same step") {
  Folder folder;
  write_checkpoint(folder.path(), 5, kMesh, kTensors, 1);
  write_checkpoint(folder.path(), 5, "data=1,tensor=1", kTensors, 1);
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-5"});
  CHECK(all_right(checkpoint::Checkpoint(checkpoint::newest_checkpoint(folder.path()))));
  // A crash between the two renames leaves only the old one, which is found.
  fs::rename(folder.at("checkpoints/step-5"), folder.at("checkpoints/step-5.old"));
  CHECK(checkpoint::newest_checkpoint(folder.path()) == folder.at("checkpoints/step-5.old"));
  CHECK(checkpoint::run_of(checkpoint::newest_checkpoint(folder.path())) == folder.path());
  write_checkpoint(folder.path(), 5, kMesh, kTensors, 1);
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-5"});
}

TEST_CASE("an incomplete newest checkpoint is skipped with one warning") {
  Folder folder;
  write_checkpoint(folder.path(), 1, kMesh, kTensors);
  write_checkpoint(folder.path(), 2, kMesh, kTensors);
  const auto broken = folder.at("checkpoints/step-2");
  fs::remove(broken + "/COMPLETE");
  Warnings warnings;
  CHECK(checkpoint::newest_checkpoint(folder.path()) == folder.at("checkpoints/step-1"));
  CHECK(warnings.lines ==
        Names{fmt::format("checkpoint {} is incomplete: the run ended while it was written; using "
                          "{}",
                          broken, folder.at("checkpoints/step-1"))});
  CHECK(
      error_of([&] { checkpoint::Checkpoint{broken}; }) ==
      fmt::format("[checkpoint] {} must be a complete checkpoint, but it lacks the mark COMPLETE: "
                  "the run ended while it was written; resume from an earlier one",
                  broken));
  write_checkpoint(folder.path(), 3, kMesh, kTensors);
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-1", "step-3"});
}

TEST_CASE("a run or a checkpoint is found by its path") {
  Folder folder;
  CHECK(checkpoint::newest_checkpoint(folder.path()).empty());
  CHECK(error_of([&] { checkpoint::find_checkpoint(folder.path()); }) ==
        fmt::format("[checkpoint] {} must hold a complete checkpoint (checkpoints/step-N with the "
                    "mark COMPLETE), but it holds none: give another run or checkpoint, or train "
                    "this run until its first one",
                    folder.path()));
  CHECK(error_of([&] { checkpoint::find_checkpoint(folder.at("none")); }) ==
        fmt::format("[checkpoint] a run or a checkpoint is a folder, but there is no folder {}",
                    folder.at("none")));
  write_checkpoint(folder.path(), 4, kMesh, kTensors);
  const auto path = folder.at("checkpoints/step-4");
  CHECK(checkpoint::find_checkpoint(folder.path()) == path);
  CHECK(checkpoint::find_checkpoint(path) == path);
  CHECK(checkpoint::run_of(path) == folder.path());
  CHECK(checkpoint::run_of(path + "/") == folder.path());
  CHECK(checkpoint::run_of(folder.path()) == folder.path());
}

TEST_CASE("a damaged checkpoint is reported with file, tensor and remedy") {
  Folder folder;
  write_checkpoint(folder.path(), 1, kMesh, kTensors);
  write_checkpoint(folder.path(), 2, kMesh, kTensors);
  const auto path = folder.at("checkpoints/step-2");
  const auto remedy = ": copy it again, or resume from another checkpoint, --resume " +
                      folder.at("checkpoints/step-1");
  const auto message = [&] {
    return error_of([&] {
      const checkpoint::Checkpoint checkpoint(path);
      for (const auto& tensor : kTensors) is_right(checkpoint, whole_of(tensor));
    });
  };
  const auto start = "[checkpoint] " + path;
  CHECK(message() == "nothing was thrown");
  for (int rank = 0; rank < 4; ++rank) {  // every rank's file is required
    const auto file = fmt::format("{}/rank-{}.safetensors", path, rank);
    flip_byte(file, 1);
    CHECK_THAT(message(),
               Catch::StartsWith(fmt::format("{}/rank-{}.safetensors must be as it was "
                                             "written, but its checksum differs (read for",
                                             start, rank)) &&
                   Catch::EndsWith(remedy));
    flip_byte(file, 1);
  }
  const auto file = path + "/rank-0.safetensors";
  SECTION("a damaged header") {
    flip_byte(file, static_cast<int64_t>(fs::file_size(file)) - 8);
    CHECK_THAT(message(), Catch::Contains("rank-0.safetensors must be as it was written"));
  }
  SECTION("cut short") {
    const auto size = fs::file_size(file);
    fs::resize_file(file, size - 1);
    CHECK_THAT(message(), Catch::Contains(fmt::format(
                              "but it has {} bytes instead of {} (read for ", size - 1, size)));
  }
  SECTION("missing") {
    fs::remove(file);
    CHECK_THAT(message(), Catch::Contains("rank-0.safetensors must be as it was written, but it "
                                          "cannot be read (No such file or directory) (read for "));
    CHECK(error_of([&] { checkpoint::Checkpoint(path).verify(); }) ==
          start +
              "/rank-0.safetensors must be as it was written, but it cannot be read (No such "
              "file or directory)" +
              remedy);
  }
  SECTION("a damaged index") {
    flip_byte(path + "/index.json", 20);
    CHECK(message() ==
          start + "/index.json must be as it was written, but its checksum differs" + remedy);
  }
  SECTION("an index that names a file outside the folder") {
    auto text = read_file(path + "/index.json", "test");
    for (const std::string name : {"../rank-0.safetensors", "/tmp/rank-0.safetensors", ".."}) {
      auto index = nlohmann::json::parse(text);
      index["files"][0]["name"] = name;
      const auto changed = index.dump();
      write_durably(path + "/index.json", changed);
      write_durably(path + "/COMPLETE", checkpoint::checksum_of(changed) + "\n");
      CHECK_THAT(message(), Catch::Contains("index.json must be as it was written, but it "
                                            "names a file outside its folder, \"" +
                                            name + "\""));
    }
  }
  SECTION("no index") {
    fs::remove(path + "/index.json");
    CHECK(message() == start + "/index.json must be as it was written, but it is missing" + remedy);
  }
}

TEST_CASE("a tensor with another name, shape or dtype than the checkpoint's is refused") {
  Folder folder;
  write_checkpoint(folder.path(), 1, kMesh, kTensors);
  const checkpoint::Checkpoint checkpoint(checkpoint::find_checkpoint(folder.path()));
  const auto path = folder.at("checkpoints/step-1");
  CHECK(error_of([&] {
          is_right(checkpoint, whole_of({"fc.weigth", {6, 5}, ""}));
        }) ==
        fmt::format("[checkpoint] checkpoint {} must hold fc.weigth, but it has no such tensor, "
                    "did you mean \"fc.weight\"?: it is of another model or optimizer",
                    path));
  CHECK(error_of([&] {
          is_right(checkpoint, whole_of({"fc.weight", {5, 6}, ""}));
        }) ==
        fmt::format("[checkpoint] fc.weight of checkpoint {} must be float64[5, 6] as in this job, "
                    "but it is float64[6, 5]: it is of another model",
                    path));
  auto part = whole_of({"fc.bias", {5}, ""});
  part.dtype = graph::DType::int64;
  CHECK_THAT(error_of([&] { is_right(checkpoint, part); }), Catch::Contains("must be int64[5]"));
}

TEST_CASE("pieces with gaps or overlaps are refused and change no checkpoint") {
  Folder folder;
  write_checkpoint(folder.path(), 1, "data=2", {{"w", {4}, "S0"}});
  const auto half = [](int64_t begin) {
    return checkpoint::TensorPart{"w", graph::DType::float64, {4}, {{begin, 2}}};
  };
  const std::vector<double> memory = {1, 2};
  const auto bytes = std::as_bytes(std::span(memory));
  const auto attempt = [&](int64_t first, int64_t second, int64_t world) {
    checkpoint::CheckpointWriter writer(folder.path(), 2);
    writer.begin();
    writer.write_rank(0, std::vector<checkpoint::Piece>{{half(first), bytes}});
    writer.write_rank(1, std::vector<checkpoint::Piece>{{half(second), bytes}});
    const auto message = error_of([&] { writer.finish({2, 0, "", "{}"}, world, 1); });
    for (const int64_t rank : {0, 1}) writer.abandon(rank);
    return message;
  };
  CHECK(attempt(0, 0, 2) == "[checkpoint] one rank must own each piece, but two wrote w[0:2]");
  CHECK(attempt(0, 2, 1) ==
        "[checkpoint] the ranks' pieces must cover w once, but cover 2 of 4 elements");
  CHECK_THAT(attempt(0, 2, 3), Catch::Contains("must be on a file system that all ranks share"));
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-1"});
  CHECK(attempt(0, 2, 2) == "nothing was thrown");
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-2"});
}

TEST_CASE("weights are exported whole under their names") {
  Folder folder;
  write_checkpoint(folder.path(), 2, kMesh, kTensors);
  checkpoint::export_checkpoint(checkpoint::Checkpoint(checkpoint::find_checkpoint(folder.path())),
                                folder.at("out.safetensors"));
  CHECK(names_in(folder.path()) == Names{"checkpoints", "out.safetensors"});
  const checkpoint::SafetensorsFile file(folder.at("out.safetensors"));
  CHECK(file.tensors().size() == 5);  // not the optimizer's
  for (const auto& tensor : kTensors) {
    const auto* stored = file.find(tensor.name);
    if (tensor.name.find(':') != std::string::npos) {
      CHECK(stored == nullptr);
      continue;
    }
    REQUIRE(stored);
    CHECK(stored->shape == tensor.shape);
    const auto expected = values_of(whole_of(tensor), 2);
    const auto bytes = std::as_bytes(std::span(expected));
    CHECK(std::equal(bytes.begin(), bytes.end(), stored->bytes.begin(), stored->bytes.end()));
  }
}

TEST_CASE("a full disk is one error, and earlier checkpoints stay") {
  Folder folder;
  write_checkpoint(folder.path(), 1, "data=1", {{"w", {4}, "R"}});
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a process cannot raise its file size limit
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto message = error_of([&] {
      write_checkpoint(folder.path(), 2, "data=1", {{"w", {4096}, "R"}});
    });
    const auto expected = fmt::format("[file] {} must be written, but: File too large",
                                      folder.at("checkpoints/step-2.partial/rank-0.safetensors"));
    checkpoint::CheckpointWriter(folder.path(), 2).abandon(0);
    ::_exit(message == expected ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(names_in(folder.at("checkpoints")) == Names{"step-1"});
  checkpoint::Checkpoint(checkpoint::newest_checkpoint(folder.path())).verify();
}

TEST_CASE("the last checkpoint is complete if a run is killed at any moment") {
  // A file system in memory survives the kill, and makes all moments equally likely.
  const Folder folder(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : fs::temp_directory_path());
  const auto begin = std::chrono::steady_clock::now();
  write_checkpoint(folder.at("timed"), 1, kMesh, kTensors);
  const std::chrono::duration<double, std::micro> one = std::chrono::steady_clock::now() - begin;
  int reached[2];
  REQUIRE(::pipe2(reached, O_CLOEXEC | O_NONBLOCK) == 0);
  std::random_device seed;
  const auto chosen = seed();
  INFO("seed " << chosen);
  std::mt19937 random(chosen);
  int64_t newest = 0;
  for (int kill = 0; kill < 50; ++kill) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int64_t step = newest + 1;; ++step) {
        // Each step is written twice: the second checkpoint replaces the first.
        for (int again = 0; again < 2; ++again) {
          write_checkpoint(folder.path(), step, kMesh, kTensors, 2);
          if (::write(reached[1], &step, sizeof step) < 0) ::_exit(1);
        }
      }
    }
    ::usleep(random() % static_cast<unsigned>(1000 + 8 * one.count()));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    int64_t finished = 0;  // the last step whose checkpoint the child completed
    while (::read(reached[0], &finished, sizeof finished) > 0) {
    }
    const auto path = checkpoint::newest_checkpoint(folder.path());
    if (path.empty()) {
      CHECK(newest == 0);
      CHECK(finished == 0);
      continue;
    }
    const checkpoint::Checkpoint checkpoint(path);
    checkpoint.verify();
    CHECK(all_right(checkpoint));
    CHECK(checkpoint.info().step >= std::max(finished, newest));
    newest = checkpoint.info().step;
  }
  CHECK(newest > 5);
  ::close(reached[0]);
  ::close(reached[1]);
}
