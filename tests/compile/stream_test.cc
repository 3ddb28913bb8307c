// Streams, section roles and value names: the printed text follows from the role.
#include <catch2/catch.hpp>

#include "compile/program.h"

using namespace perigee;
using namespace perigee::compile;

TEST_CASE("a stream's name parses to the stream") {
  for (const char* name : {"compute", "to host", "from host", "data", "data,context", "data#1",
                           "pipe:0,2", "pipe:0>1", "pipe:0>1/3>4", "pipe:0.1>1.0/0>1"}) {
    INFO(name);
    CHECK(Stream::parse(name).name() == name);
  }
  CHECK(Stream::parse("data#1") == Stream::over("data", 1));
  CHECK(Stream::parse("pipe:0>1/3>4") ==
        Stream::message("pipe", {.stage = 0, .part = 3}, {.stage = 1, .part = 4}));
  CHECK_FALSE(Stream::compute().communicates());
  CHECK_THROWS_WITH(Stream::parse("pipe:a"), Catch::Contains("a stream is named like"));
}

TEST_CASE("a section's name follows from its role") {
  using Position = SectionRole::Position;
  CHECK(SectionRole{.kind = SectionKind::micro, .position = Position::first}.name() ==
        "micro_first");
  const PartId kept{.part = 3, .kept = true};
  CHECK(SectionRole{.kind = SectionKind::backward, .part = kept, .piece = 1}.name() ==
        "backward.3.kept.piece1");
  CHECK(SectionRole{.kind = SectionKind::average, .period = 4}.name() == "average.4");
}

TEST_CASE("a value's name with a suffix keeps its role and subject") {
  const auto name = flat_gradients_name("blocks.0") + " part low";
  CHECK(name.text == "gradients.blocks.0 part low");
  CHECK(name.role == ValueRole::flat_gradients);
  CHECK(name.subject == "blocks.0");
  CHECK(gradient_name("head.weight").text == "gradient:head.weight");
}
