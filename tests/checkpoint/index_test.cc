// Indices that have their checksum, but cannot be as a run wrote them.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "tests/checkpoint/support.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using nlohmann::json;

TEST_CASE("an index whose sizes cannot be is refused, and takes no memory") {
  const test::Folder folder;
  test::write_checkpoint(folder.path(), 1, "data=2", {{"w", {4, 2}, "S0"}});
  const auto path = folder.at("checkpoints/step-1");
  json index;
  std::ifstream(path + "/index.json") >> index;
  const auto why = [&](const char* place, const json& value) {
    auto changed = index;
    changed[json::json_pointer(place)] = value;
    const auto text = changed.dump();
    std::ofstream(path + "/index.json") << text;
    std::ofstream(path + "/COMPLETE") << checkpoint::checksum_of(text) << "\n";
    return test::error_of(
        [&] { export_checkpoint(checkpoint::Checkpoint(path), folder.at("out.safetensors")); });
  };
  using Catch::Contains;
  CHECK(why("/step", 1) == "nothing was thrown");
  CHECK_THAT(why("/step", 1e300), Contains("a size or step that is no whole number"));
  CHECK_THAT(why("/samples", -1), Contains("a size or step that is no whole number"));
  CHECK_THAT(why("/tensors/w/shape/0", uint64_t{1} << 40), Contains("larger than all files"));
  CHECK_THAT(why("/tensors/w/shape", {uint64_t{1} << 59, 64}), Contains("larger than all files"));
  CHECK_THAT(why("/tensors/w/pieces/0/begin/0", -1), Contains("no whole number"));
  CHECK_THAT(why("/tensors/w/pieces/0/begin/0", 3), Contains("lies outside of the tensor"));
  CHECK_THAT(why("/tensors/w/pieces/0/shape/0", 5), Contains("lies outside of the tensor"));
  CHECK_THAT(why("/tensors", json::array()), Contains("its tensors have no names"));
  // Sizes of files that are not theirs would allow any shape.
  CHECK_THAT(why("/files/0/bytes", uint64_t{1} << 50), Contains("instead of"));
}
