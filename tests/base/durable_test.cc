// Files are on the disk before they have their name, and their name before a call returns.
#include "base/files/durable.h"

#include <catch2/catch.hpp>

#include "tests/support/synced_files.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using Events = std::vector<std::string>;

TEST_CASE("a file is synced before it is renamed, and its folder after that") {
  const test::Folder folder;
  const auto write = [&] { write_durably(folder.at("a"), "text"); };
  CHECK(test::file_events_of(folder.path(), write) ==
        Events{"sync ./a.partial", "rename ./a.partial ./a", "sync ."});
  const auto move = [&] { rename_durably(folder.at("a"), folder.at("b")); };
  CHECK(test::file_events_of(folder.path(), move) == Events{"rename ./a ./b", "sync ."});
}
