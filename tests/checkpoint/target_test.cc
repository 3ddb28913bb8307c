// Targets of checkpoints: the same cases for a folder and for an S3 service on the
// loopback interface.
#include "checkpoint/target.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "base/fail.h"
#include "base/log.h"
#include "checkpoint/files.h"
#include "checkpoint/s3/part_bytes.h"
#include "checkpoint/safetensors.h"
#include "tests/checkpoint/support.h"
#include "tests/support/s3_server.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using namespace perigee::checkpoint;
using Catch::Contains;
using test::Environment;
using test::error_of;
using test::is_right;
using test::kMesh;
using test::kTensors;
using test::S3Server;
using test::Sharded;
using test::whole_of;
using test::write_checkpoint;

namespace {

using Names = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// Returns the members of a folder, sorted, with "/" after the name of a folder.
Names members(Target& target, const std::string& folder) {
  Names names;
  for (const auto& entry : target.list(folder)) {
    names.push_back(entry.name + (entry.is_folder ? "/" : ""));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string pattern(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

void write(Target& target, const std::string& path, std::string_view text, size_t piece) {
  const auto writer = target.create(path, text.size());
  for (size_t at = 0; at < text.size(); at += piece) {
    writer->write(std::as_bytes(std::span(text.substr(at, piece))));
  }
  writer->finish();
}

// What every target does. `run`: an empty folder.
void check_target(const std::string& run) {
  const auto target = open_target(run);
  const auto at = [&](const std::string& name) { return inside(run, name); };
  // Objects.
  CHECK_FALSE(target->has_folder(at("a")));
  target->make_folder(at("a"));
  CHECK(target->has_folder(at("a")));
  CHECK(members(*target, at("a")).empty());
  CHECK(members(*target, at("none")).empty());
  CHECK_FALSE(target->size(at("a/x")));
  target->put(at("a/x"), "first");
  target->put(at("a/x"), "the second");
  CHECK(target->size(at("a/x")) == 10u);
  CHECK(target->read_all(at("a/x")) == "the second");
  CHECK(read_text(at("a/x")) == "the second");
  target->put(at("a/empty"), "");
  CHECK(target->size(at("a/empty")) == 0u);
  target->put(at("a/q+ &=ü?#"), "odd name");
  CHECK(target->read_all(at("a/q+ &=ü?#")) == "odd name");
  target->remove(at("a/q+ &=ü?#"));
  // Ranges.
  std::vector<std::byte> part(4);
  target->read(at("a/x"), 4, part);
  CHECK(text_of(part) == "seco");
  CHECK(error_of([&] { target->read(at("a/x"), 8, part); }).starts_with("["));
  CHECK_THAT(error_of([&] { target->read(at("a/none"), 0, part); }),
             Contains("a/none must be read"));
  CHECK_THAT(error_of([&] { target->read_all(at("a/none")); }), Contains("a/none"));
  // Objects of several parts, in writes of other sizes.
  const auto large = pattern(200'000);
  for (const size_t piece : {size_t{1'000'000}, size_t{65536}, size_t{70'001}, size_t{999}}) {
    write(*target, at("a/large"), large, piece);
    CHECK(target->read_all(at("a/large")) == large);
  }
  part.resize(70'000);
  target->read(at("a/large"), 100'000, part);
  CHECK(text_of(part) == large.substr(100'000, part.size()));
  // An object that is not finished replaces none, and none appears.
  for (const std::string name : {"a/new", "a/large"}) {
    const auto writer = target->create(at(name), large.size());
    writer->write(std::as_bytes(std::span(large)));
  }
  CHECK_FALSE(target->size(at("a/new")));
  // Folders.
  CHECK(members(*target, run) == Names{"a/"});
  target->make_folder(at("a/b"));
  target->put(at("a/b/COMPLETE"), "");
  write(*target, at("a/b/large"), large, large.size());
  target->remove_folder(at("a/b"));  // holds files
  CHECK(members(*target, at("a/b")) == Names{"COMPLETE", "large"});
  target->move_folder(at("a/b"), at("a/c"), "COMPLETE");
  CHECK_FALSE(target->has_folder(at("a/b")));
  CHECK(members(*target, at("a/b")).empty());
  CHECK(members(*target, at("a/c")) == Names{"COMPLETE", "large"});
  CHECK(target->read_all(at("a/c/large")) == large);
  target->remove(at("a/c/COMPLETE"));
  target->remove(at("a/c/large"));
  target->remove(at("a/c/large"));  // there is none
  CHECK(target->has_folder(at("a/c")));
  target->remove_folder(at("a/c"));
  CHECK_FALSE(target->has_folder(at("a/c")));
}

bool whole_and_parts_right(const Checkpoint& checkpoint) {
  return std::ranges::all_of(kTensors, [&](const auto& tensor) {
    auto part = whole_of(tensor);
    if (!is_right(checkpoint, part)) return false;
    if (part.ranges.size() < 2) return true;
    part.ranges[0] = {1, part.ranges[0].length - 2};
    part.ranges[1] = {1, 2};
    return is_right(checkpoint, part);
  });
}

// The checkpoints of a run, whatever their target. `run`: an empty folder.
void check_store(const std::string& run) {
  const auto target = open_target(run);
  const auto store = store_of(run);
  CHECK(newest_checkpoint(run).empty());
  for (const int64_t step : {1, 2, 3}) write_checkpoint(run, step, kMesh, kTensors, 2);
  CHECK(members(*target, store) == Names{"step-2/", "step-3/"});
  CHECK(members(*target, inside(store, "step-3")).size() == 6);  // 4 ranks, index, mark
  const Checkpoint checkpoint(find_checkpoint(run + "/"));
  CHECK(checkpoint.folder() == inside(store, "step-3"));
  CHECK(run_of(checkpoint.folder()) == run);
  CHECK(run_of(checkpoint.folder() + "/") == run);
  CHECK(run_of(run) == run);
  CHECK(whole_and_parts_right(checkpoint));
  checkpoint.verify();
  // A checkpoint of the same step replaces the earlier one.
  write_checkpoint(run, 3, "data=1,tensor=2", kTensors, 2);
  CHECK(members(*target, store) == Names{"step-2/", "step-3/"});
  CHECK(whole_and_parts_right(Checkpoint(newest_checkpoint(run))));
  // Later checkpoints are set aside.
  CHECK(set_aside_later(run, 2) == 1);
  CHECK(members(*target, store) == Names{"step-2/", "step-3.aside-1/"});
  CHECK(whole_and_parts_right(Checkpoint(inside(store, "step-3.aside-1"))));
  // One without its mark is none, and the next one removes it.
  write_checkpoint(run, 4, kMesh, kTensors, 3);
  target->remove(inside(store, "step-4/COMPLETE"));
  CHECK(newest_checkpoint(run) == inside(store, "step-2"));
  CHECK_THAT(error_of([&] { Checkpoint(inside(store, "step-4")); }), Contains("COMPLETE"));
  CheckpointWriter writer(run, 5);
  writer.begin();
  writer.abandon_all();
  if (!target->moves_at_once())
    CHECK(members(*target, store) == Names{"step-2/", "step-3.aside-1/"});
  remove_checkpoints(run);
  CHECK(newest_checkpoint(run).empty());
}

// Starts the server and sets the variables for it.
struct Service {
  S3Server server;
  std::unique_ptr<Environment> environment;

  explicit Service(int attempts = 3) {
    if (!server.is_there()) {
      WARN("skipped: no S3 server, " << server.why());
      return;
    }
    environment = std::make_unique<Environment>(server.environment(attempts));
  }
  explicit operator bool() const { return server.is_there(); }
};

}  // namespace

TEST_CASE("a folder is a target of checkpoints") {
  test::Folder folder;
  check_target(folder.path());
  check_store(folder.at("run"));
}

TEST_CASE("parts of an S3 object keep the service's limits, with any PERIGEE_S3_PART_BYTES") {
  constexpr auto kMiB = uint64_t{1} << 20U, kTiB = uint64_t{1} << 40U;
  s3::Settings settings;
  CHECK(s3::uploaded_part_bytes(settings, kMiB) == 8 * kMiB);
  CHECK(s3::copied_part_bytes(settings, kMiB) == 512 * kMiB);
  CHECK(kTiB / s3::uploaded_part_bytes(settings, kTiB) < 10'000);
  for (const auto bytes : {80 * kMiB, 128 * kMiB, ~uint64_t{0}}) {
    settings.part_bytes = bytes;
    CHECK(s3::uploaded_part_bytes(settings, kMiB) == bytes);
    CHECK(s3::copied_part_bytes(settings, kTiB) == 5120 * kMiB);
  }
}

TEST_CASE("an S3 service is a target of checkpoints, and errors of it are one sentence") {
  Service service;
  if (!service) return;
  const auto& server = service.server;
  check_target("s3://bucket/targets");
  check_store("s3://bucket/runs/a b");
  const std::string run = "s3://bucket/run", path = run + "/x";
  const auto target = open_target(run);

  // A service that is busy is asked again; one that stays busy is an error.
  server.set_faults(R"([{"match": "PUT .*/x", "status": 503, "count": 2}])");
  target->put(path, "after two attempts");
  CHECK(target->read_all(path) == "after two attempts");
  server.set_faults(R"([{"match": "PUT .*/x", "status": 503}])");
  CHECK(error_of([&] { target->put(path, "lost"); }) ==
        fmt::format("[s3] {} must be reached, but {} failed 3 times: it answered 503 SlowDown",
                    path, server.endpoint()));
  CHECK_THAT(error_of([&] { target->size(path); }), !Contains("s3"));
  server.set_faults(R"([{"match": "GET .*/x", "cut": true, "count": 2}])");
  CHECK(target->read_all(path) == "after two attempts");
  server.set_faults("[]");

  // A part of an upload is sent again, too.
  const auto large = pattern(200'000);
  server.set_faults(R"([{"match": "PUT .*partNumber=2", "status": 500, "count": 2}])");
  write(*target, path, large, large.size());
  CHECK(target->read_all(path) == large);
  server.set_faults("[]");

  // An object of any size is read whole.
  {
    const Environment one_part(Variables{{"PERIGEE_S3_PART_BYTES", "33554432"}});
    const auto index = pattern(size_t{17} << 20U);
    const auto other = open_target(run);
    other->put(path, index);
    CHECK(other->read_all(path) == index);
  }

  // Only the ranges of a part are read.
  write_checkpoint(run, 1, "data=1", {{"w", {20'000}, "R"}});
  const Checkpoint checkpoint(newest_checkpoint(run));
  server.clear_requests();
  TensorPart half{"w", graph::DType::float64, {20'000}, {{10'000, 10'000}}};
  CHECK(is_right(checkpoint, half));
  int64_t bytes = 0;
  for (const auto& line : server.requests()) {
    if (line.starts_with("GET ")) bytes += std::stoll(line.substr(line.rfind(' ') + 1));
  }
  CHECK(bytes > 80'000);
  CHECK(bytes < 81'000);

  // A damaged piece is noticed where it is read whole.
  const auto file = run + "/checkpoints/step-1/rank-0.safetensors";
  auto damaged = target->read_all(file);
  damaged.back() ^= 1;
  write(*target, file, damaged, damaged.size());
  const Checkpoint opened(newest_checkpoint(run));
  CHECK_THAT(error_of([&] {
               is_right(opened, whole_of({"w", {20'000}, ""}));
             }),
             Contains(file + " must be as it was written, but its checksum differs (read for w)"));
  CHECK_THAT(error_of([&] { opened.verify(); }), Contains("its checksum differs"));
  write(*target, file, damaged.substr(1), damaged.size());
  CHECK_THAT(error_of([&] { Checkpoint(newest_checkpoint(run)).verify(); }),
             Contains("but it has 160071 bytes instead of 160072") || Contains("bytes instead of"));

  // Errors name the remedy and no credential.
  const auto none = error_of([] { open_target("s3://none/x")->put("s3://none/x", "text"); });
  CHECK_THAT(none, Catch::StartsWith("[s3] s3://none/x must be written, but " + server.endpoint() +
                                     " answered 404 NoSuchBucket") &&
                       Contains("make the bucket"));
  for (const auto* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}) {
    const Environment wrong(Variables{{name, "not-the-key"}});
    const auto refused = error_of([&] { open_target(path)->put(path, "text"); });
    CHECK_THAT(refused, Contains("answered 403 ") && Contains("check AWS_ACCESS_KEY_ID"));
    CHECK_THAT(refused, !Contains("not-the-key") && !Contains(server.secret()));
    const Environment unset(Variables{{name, ""}});
    CHECK(error_of([&] { open_target(path); }) ==
          fmt::format(
              "[s3] paths that begin with s3:// need {} in the environment, but it is not set",
              name));
  }
  {
    const Environment wrong(Variables{{"AWS_ENDPOINT_URL", "http://user:secret@host"}});
    const auto refused = error_of([&] { open_target(path); });
    CHECK_THAT(refused, Contains("AWS_ENDPOINT_URL must be http://HOST:PORT"));
    CHECK_THAT(refused, !Contains("secret@"));
  }
  CHECK_THAT(error_of([] { open_target("s3:///x")->size("s3:///x"); }),
             Contains("a path of S3 is s3://BUCKET/PREFIX"));

  // A service that goes away is one error; the next request does not wait as long.
  service.server.stop();
  CHECK_THAT(error_of([&] { target->put(path, "text"); }),
             Contains("[s3] " + path + " must be reached, but ") && Contains(" failed 3 times: "));
  CHECK_THAT(error_of([&] { target->size(path); }), Contains(" failed 1 time: "));
}
