// The two largest buffers of a program, of which the memory model holds a share in reserve.
#include <catch2/catch.hpp>

#include "search/space/memory_model.h"

using namespace perigee;
using compile::Frame;

namespace {

// Adds a float32 value of `count` elements.
void add(compile::Program& program, int32_t frame, int64_t offset, int64_t count) {
  compile::ProgramValue value;
  value.type = {graph::DType::float32, {count}};
  value.place = {frame, offset};
  program.values.push_back(std::move(value));
}

}  // namespace

TEST_CASE("a buffer that several values have in turn is as large as the largest of them") {
  compile::Program program;
  program.frames = {{.kind = Frame::Kind::persistent},
                    {.kind = Frame::Kind::scratch},
                    {.kind = Frame::Kind::microbatch},
                    {.kind = Frame::Kind::scratch, .host = true}};
  add(program, 0, 0, 1000);  // outlives the step
  add(program, 3, 0, 1000);  // in the host's memory
  add(program, 1, 0, 10);
  add(program, 1, 0, 100);  // in the place of the value before it
  add(program, 1, 0, 90);
  CHECK(search::largest_buffers(program) == 400);
  add(program, 2, 0, 20);
  CHECK(search::largest_buffers(program) == 480);
  add(program, 1, 512, 50);
  CHECK(search::largest_buffers(program) == 600);
}
