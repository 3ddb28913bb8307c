// A checkpoint is on the disk before it counts as one.
#include "base/files/durable.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/checkpoint/support.h"
#include "tests/support/synced_files.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using Events = std::vector<std::string>;

TEST_CASE("every file of a checkpoint is synced before the folder has its name") {
  const test::Folder folder;
  const auto events = test::file_events_of(folder.path(), [&] {
    test::write_checkpoint(folder.path(), 3, "data=2", {{"w", {4}, "S0"}, {"v", {2, 2}, "S1"}});
  });
  const std::string partial = "./checkpoints/step-3.partial", final = "./checkpoints/step-3";
  const auto place_of = [&](const std::string& event) {
    INFO(event);
    REQUIRE(std::ranges::count(events, event) == 1);
    return std::ranges::find(events, event) - events.begin();
  };
  const auto named = place_of("rename " + partial + " " + final);
  // Weights of each rank; the index by way of another name.
  for (const std::string name : {"rank-0.safetensors", "rank-1.safetensors"}) {
    const auto written = std::ranges::find_if(events, [&](const std::string& event) {
      return event.starts_with("sync " + partial + "/" + name);
    });
    INFO(name);
    REQUIRE(written != events.end());
    CHECK(written - events.begin() < named);
  }
  const auto index = partial + "/index.json";
  const auto indexed = place_of("rename " + index + ".partial " + index);
  CHECK(place_of("sync " + index + ".partial") < indexed);
  CHECK(indexed < named);
  // The names in the folder, then the folder's own name, then the mark that it is complete.
  CHECK(std::ranges::find(events.begin() + indexed + 2, events.begin() + named,
                          "sync " + partial) != events.begin() + named);
  CHECK(events[static_cast<size_t>(named) + 1] == "sync ./checkpoints");
  CHECK(place_of("sync " + final + "/COMPLETE.partial") > named);
  CHECK(events.back() == "sync " + final);
}

TEST_CASE("the names of new folders are synced, and those of old ones are not") {
  const test::Folder folder;
  const auto make = [&](const std::string& path) {
    return test::file_events_of(folder.path(), [&] { make_folders(folder.at(path)); });
  };
  CHECK(make("a/b") == Events{"sync ./a", "sync ."});
  CHECK(make("a/c") == Events{"sync ./a"});
  CHECK(make("a/b").empty());
}
