// Event files of TensorBoard. The bytes are those that TensorBoard 2.20 writes (tensorboard.summary
// .writer.record_writer) for the same event.
#include "view/event_file.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

using namespace perigee;

TEST_CASE("an event is a record with its checksums") {
  std::string hex;
  for (const char c : view::event_record(1700000000.25, 300, {{"loss", 2.5}, {"lr", 1e-5}})) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  CHECK(hex ==
        "2600000000000000734fe3000900001040fc54d94110ac022a180a0b0a046c6f737315000020400a090a026c72"
        "15acc52737d2c050a7");
}

TEST_CASE("an event file begins with its version and the first step, and grows by whole records") {
  const test::Folder folder;
  const auto size = [&] {
    uintmax_t bytes = 0;
    for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
      CHECK(file.path().filename().string().starts_with("events.out.tfevents."));
      bytes += file.file_size();
    }
    return bytes;
  };
  view::EventFile events(folder.path(), 7);
  const auto empty = size();
  CHECK(empty > 0);
  events.add(7, {{"loss", std::nan("")}});
  CHECK(size() == empty);
  events.add(7, {{"loss", 2.5}, {"lr", std::nan("")}});
  CHECK(size() == empty + view::event_record(0, 7, {{"loss", 2.5}}).size());
}

TEST_CASE("an event file that cannot be created is an error that names it") {
  CHECK_THROWS_WITH(view::EventFile("/nowhere", 1), Catch::Contains("/nowhere/events.out"));
}
