// Negative controls: a wait that comes too late, a record that is missing or an order that differs
// is found under every seed: as a race with both instructions, or as a deadlock with its cycle.
#include <algorithm>
#include <functional>
#include <optional>
#include <regex>

#include "compile/draft/draft.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/programs/plans.h"
#include "tests/cuda/simulated/turns.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

using Catch::Contains;
using compile::Instruction;
using compile::Program;
using compile::ValueId;

// The use of a collective's result by the first instruction after its wait that has one.
struct Use {
  const Instruction* collective = nullptr;
  const Instruction* by = nullptr;
};

bool overlap(const Program& program, ValueId a, ValueId b) {
  if (!a.defined() || !b.defined()) return false;
  const auto &x = program.values[a.index], &y = program.values[b.index];
  if (x.place.frame < 0 || x.place.frame != y.place.frame) return false;
  return x.place.offset < y.place.offset + y.type.bytes() &&
         y.place.offset < x.place.offset + x.type.bytes();
}

// Returns the use that the wait at `index` protects within its section, if its collective is there
// and no other wait before the use is for later work of the collective's stream.
std::optional<Use> use_of(const Program& program, const std::vector<Instruction>& list,
                          size_t index) {
  Use use;
  size_t start = 0;
  const auto started = [&](int32_t event, size_t before) {
    size_t found = list.size();
    for (size_t i = 0; i < before; ++i) {
      const bool starts = list[i].kind == Instruction::Kind::collective && list[i].event == event;
      if (starts) found = i;
    }
    return found;
  };
  start = started(list[index].event, index);
  if (start == list.size()) return {};
  use.collective = &list[start];
  const auto result = use.collective->outputs.empty() ? ValueId{} : use.collective->outputs[0];
  for (size_t i = start + 1; i < list.size(); ++i) {
    if (list[i].kind == Instruction::Kind::wait && i != index) {
      const auto other = started(list[i].event, i);
      const bool later = other < list.size() && other > start;
      if (later && list[other].stream == use.collective->stream) return {};
    }
    bool reads = false;
    compile::each_operand(list[i], [&](ValueId v) { reads |= overlap(program, v, result); });
    for (const auto v : list[i].outputs) reads |= overlap(program, v, result);
    if (!reads) continue;
    if (i < index) return {};
    use.by = &list[i];
    return use;
  }
  return {};
}

// Moves the wait to the end of its section whose use is the wanted one after `skipped` others.
// Returns whether there is one.
bool delay_wait(Program& program, const std::function<bool(const Use&)>& wanted, int skipped = 0) {
  for (auto& section : program.sections) {
    auto& list = section.instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind != Instruction::Kind::wait) continue;
      const auto use = use_of(program, list, i);
      if (!use || !wanted(*use) || skipped-- > 0) continue;
      const auto at = list.begin() + static_cast<int64_t>(i);
      std::rotate(at, at + 1, list.end());
      return true;
    }
  }
  return false;
}

bool is_op(const Use& use) { return use.by->kind == Instruction::Kind::op; }

struct Control {
  std::string name;
  std::vector<std::string> rows;  // of which one has such a wait
  std::function<bool(const Use&)> wanted;
  std::string race = " reads what ";  // in the text of one
};

const std::vector<Control>& controls() {
  static const std::vector<Control> all = {
      {"before a collective",
       {"offloaded units", "ring of sequences", "experts"},
       [](const Use& use) { return use.by->kind == Instruction::Kind::collective; }},
      {"after a sum",
       {"tensor"},
       [](const Use& use) { return is_op(use) && use.collective->op == "comm::all_reduce"; }},
      {"after a gather",
       {"fsdp"},
       [](const Use& use) { return is_op(use) && use.collective->op == "comm::all_gather"; }},
      {"after an exchange",
       {"sequence"},
       [](const Use& use) { return is_op(use) && use.collective->op == "comm::all_to_all"; }},
      {"after a shift",
       {"ring"},
       [](const Use& use) { return is_op(use) && use.collective->op == "comm::shift"; }},
      {"before a received value is read",
       {"1f1b"},
       [](const Use& use) { return is_op(use) && use.collective->op == "comm::receive"; }},
      {"before a buffer is written again",
       {"fsdp", "gathered once", "recompute", "zero2"},
       [](const Use& use) { return use.collective->op == "comm::reduce_scatter"; },
       " writes what comm::reduce_scatter"},
      {"after a copy back",
       {"offload"},
       [](const Use& use) { return is_op(use) && use.collective->op == "host::fetch"; }},
  };
  return all;
}

// Checks that the program of a row without one of these waits has the race under each seed. Returns
// whether there is such a wait that no other one makes superfluous.
bool check_control(const Control& control) {
  for (const auto& row : control.rows) {
    const auto& of = compiled(row);
    for (int skipped = 0; skipped < 40; ++skipped) {
      auto programs = of.programs;
      const bool found = std::any_of(programs.begin(), programs.end(), [&](Program& program) {
        return delay_wait(program, control.wanted, skipped);
      });
      if (!found) break;
      const auto has_race = [&](uint64_t seed) {
        const auto races = simulate(of, programs, seed).races;
        return std::any_of(races.begin(), races.end(), [&](const std::string& race) {
          return race.find(control.race) != race.npos &&
                 std::regex_search(race,
                                   std::regex(" of rank (\\d) .*scope.* of rank \\1 .*scope"));
        });
      };
      if (!has_race(0)) continue;
      for (uint64_t seed = 1; seed < 4; ++seed) CHECK(has_race(seed));
      return true;
    }
  }
  return false;
}

TEST_CASE("a wait that comes after the use that it protects is a race, in any order") {
  for (const auto& control : controls()) {
    INFO(control.name);
    CHECK(check_control(control));
  }
}

TEST_CASE("a value that is read before it has come changes results under some seed") {
  const auto& of = compiled("1f1b");
  auto programs = of.programs;
  bool found = false;
  for (auto& program : programs) {
    found |= delay_wait(program,
                        [](const Use& use) { return use.collective->op == "comm::receive"; });
  }
  REQUIRE(found);
  int differs = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    differs += difference(of, simulate(of, programs, seed)) != "";
  }
  CHECK(differs > 0);
}

// Within an instruction of the op, the `nth` record of an event on its thread does nothing.
int nth = 0;
std::string of_op;
thread_local std::string label_of_thread;
thread_local int records = 0;

cudaError_t (*record_event)(cudaEvent_t, cudaStream_t) = nullptr;

cudaError_t record_but_one(cudaEvent_t event, cudaStream_t stream) {
  const auto label = simulated::label();
  if (label != label_of_thread) {
    label_of_thread = label;
    records = 0;
  }
  if (label.starts_with(of_op) && ++records == nth) return cudaSuccess;
  return record_event(event, stream);
}

TEST_CASE("a record of an event that is missing is a race, in any order") {
  struct Control {
    std::string row, op;
    int nth;  // 1: before the collective or copy; 3: after it
  };
  for (const auto& control :
       {Control{"tensor", "comm::all_reduce", 1}, Control{"tensor", "comm::all_reduce", 3},
        Control{"1f1b", "comm::send", 1}, Control{"1f1b", "comm::receive", 3},
        Control{"offload", "host::store", 1}, Control{"offload", "host::fetch", 3}}) {
    INFO(control.row << ", " << control.op << ", record " << control.nth);
    nth = control.nth;
    of_op = control.op;
    const auto& of = compiled(control.row);
    for (uint64_t seed = 0; seed < 2; ++seed) {
      const auto run = simulate(of, of.programs, seed, [](Calls& table) {
        record_event = table.cudaEventRecord;
        table.cudaEventRecord = record_but_one;
      });
      CHECK_THAT(run.finding(), Contains("race: ") && Contains(control.op));
    }
  }
}

TEST_CASE("two collectives of one group in another order on one rank are found") {
  const auto& of = compiled("fsdp");
  auto programs = of.programs;
  auto& sections = programs[1].sections;
  bool swapped = false;
  for (auto& section : sections) {
    std::vector<Instruction*> gathers;
    for (auto& instruction : section.instructions) {
      if (instruction.op == "comm::all_gather") gathers.push_back(&instruction);
    }
    if (gathers.size() < 2 || swapped) continue;
    std::swap(*gathers[0], *gathers[1]);
    swapped = true;
  }
  REQUIRE(swapped);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const auto run = simulate(of, programs, seed);
    CHECK((run.finding() != "" || difference(of, run) != ""));
  }
}

TEST_CASE("ranks that wait for each other's messages are named as a cycle") {
  const auto& of = compiled("interleaved");
  auto programs = of.programs;
  // The first stage runs its second part, whose activations come from the first part by way of the
  // second stage, before its first part.
  auto& order = programs[0].order;
  const auto is_forward = [&](const compile::Run& run) {
    return programs[0].sections[run.section].role.kind == compile::SectionKind::forward;
  };
  const auto part_of = [&](const compile::Run& run) {
    return programs[0].sections[run.section].role.part.part;
  };
  const auto first = std::find_if(order.begin(), order.end(), is_forward);
  const auto second = std::find_if(first, order.end(), [&](const compile::Run& run) {
    return is_forward(run) && part_of(run) != part_of(*first);
  });
  REQUIRE((first < second && second != order.end()));
  std::rotate(first, second, second + 1);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto run = simulate(of, programs, seed);
    CHECK_THAT(run.deadlock, Contains("deadlock: ") && Contains("rank 0's compute stream") &&
                                 Contains("comm::receive of rank 0 (forward") &&
                                 Contains("comm::receive of rank 1 (forward") &&
                                 Contains("rank 0 to reach it") && Contains("a cycle"));
    CHECK_THAT(run.errors[0] + run.errors[1], Contains(run.deadlock));
  }
}

}  // namespace
}  // namespace perigee::cuda
