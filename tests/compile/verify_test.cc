// Negative controls of the verifier: programs that are broken in one place are refused.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "compile/draft/draft.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::compile;
using Catch::Contains;

namespace {

Program good() {
  const auto graph = mlp({.layers = 4});
  auto plan = data_parallel(graph, 2, 2);
  plan.communication.bucket_bytes = 1 << 10;
  SyntheticTraces traces;
  auto program = compile::compile(graph, plan, {.clip_norm = 1.0}, 0, traces);
  verify(program);
  return program;
}

std::vector<Instruction>& instructions(Program& program, const std::string& name) {
  return const_cast<Section&>(section(program, name)).instructions;
}

bool caught(const Program& program) {
  try {
    verify(program);
  } catch (const Error&) {
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a value released before its last use is caught") {
  const Program program = good();
  int tried = 0;
  const auto& list = program.sections[0].instructions;
  for (size_t i = 1; i < list.size(); ++i) {
    for (const ValueId v : list[i].releases) {
      bool reads = false;
      each_operand(list[i], [&](ValueId o) {
        reads = reads || o == v || program.values[o.index].view_of == v;
      });
      if (!reads) continue;
      Program broken = program;
      auto& changed = broken.sections[0].instructions;
      std::erase(changed[i].releases, v);
      changed[i - 1].releases.push_back(v);
      ++tried;
      INFO("released before instruction " << i);
      CHECK(caught(broken));
    }
  }
  CHECK(tried > 10);
}

TEST_CASE("two swapped releases are caught") {
  const Program program = good();
  int tried = 0;
  const auto& list = program.sections[0].instructions;
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i].releases.empty()) continue;
    for (size_t j = i + 1; j < list.size(); ++j) {
      if (list[j].releases.empty()) continue;
      Program broken = program;
      auto& changed = broken.sections[0].instructions;
      std::swap(changed[i].releases, changed[j].releases);
      ++tried;
      INFO("releases of " << i << " and " << j);
      CHECK(caught(broken));
    }
  }
  CHECK(tried > 50);
}

TEST_CASE("a value that is not released before its memory is reused is caught") {
  const Program program = good();
  int found = 0, tried = 0;
  for (size_t i = 0; i < program.sections[0].instructions.size(); ++i) {
    if (program.sections[0].instructions[i].releases.empty()) continue;
    Program broken = program;
    broken.sections[0].instructions[i].releases.clear();
    ++tried;
    found += caught(broken);
  }
  CHECK(tried > 10);
  CHECK(found == tried);
}

TEST_CASE("places that overlap while both are in use are caught") {
  Program program = good();
  // The activations saved for the backward pass.
  std::vector<int32_t> saved;
  for (const auto& instruction : instructions(program, "micro_first")) {
    if (instruction.op == "aten::addmm") saved.push_back(instruction.outputs[0].index);
  }
  REQUIRE(saved.size() == 4);
  for (size_t k = 1; k < saved.size(); ++k) {
    Program broken = program;
    broken.values[saved[k]].place = broken.values[saved[0]].place;
    CHECK(caught(broken));
  }
  Program outside = program;
  outside.values[saved[0]].place.offset = outside.frames[1].bytes;
  CHECK_THROWS_WITH(verify(outside), Contains("within its frame"));
  Program unaligned = program;
  unaligned.values[saved[0]].place.offset += 4;
  CHECK_THROWS_WITH(verify(unaligned), Contains("multiple of 64"));
}

TEST_CASE("a dropped wait is caught") {
  const Program program = good();
  int tried = 0;
  for (size_t s = 0; s < program.sections.size(); ++s) {
    for (size_t i = 0; i < program.sections[s].instructions.size(); ++i) {
      if (program.sections[s].instructions[i].kind != Instruction::Kind::wait) continue;
      Program broken = program;
      auto& list = broken.sections[s].instructions;
      list.erase(list.begin() + static_cast<int64_t>(i));
      ++tried;
      CHECK(caught(broken));
    }
  }
  CHECK(tried > 2);
}

TEST_CASE("a reduction that starts before its last gradient is computed is caught") {
  Program program = good();
  const auto& list = instructions(program, "micro_last");
  int tried = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    if (list[i].kind != Instruction::Kind::collective) continue;
    if (list[i - 1].kind == Instruction::Kind::collective) continue;
    Program broken = program;
    auto& changed = instructions(broken, "micro_last");
    std::swap(changed[i], changed[i - 1]);
    ++tried;
    CHECK_THROWS_WITH(verify(broken), Contains("waited for"));
  }
  CHECK(tried > 2);
}

TEST_CASE("a missing instruction is caught") {
  const Program program = good();
  int tried = 0;
  for (size_t i = 0; i < program.sections[0].instructions.size(); ++i) {
    const auto& instruction = program.sections[0].instructions[i];
    if (instruction.in_place || instruction.outputs.empty()) continue;
    if (!instruction.outputs[0].defined()) continue;
    Program broken = program;
    auto& list = broken.sections[0].instructions;
    list.erase(list.begin() + static_cast<int64_t>(i));
    ++tried;
    INFO("instruction " << i);
    CHECK(caught(broken));
  }
  CHECK(tried > 20);
}

TEST_CASE("temporaries that overlap live values are caught") {
  const Program program = good();
  int tried = 0;
  for (size_t i = 0; i < program.sections[0].instructions.size(); ++i) {
    Program broken = program;
    auto& instruction = broken.sections[0].instructions[i];
    if (instruction.op != "perigee::gelu_backward_sum") continue;
    const auto operand = std::get<ValueId>(instruction.args[1].second);
    instruction.allocations.push_back({64, program.values[operand.index].place});
    ++tried;
    CHECK(caught(broken));
  }
  CHECK(tried == 4);
}
