// Data-parallel training in programs against one rank and against plain LibTorch, and negative
// controls of both.
#include "tests/parity/support/training.h"

using namespace perigee;
using namespace perigee::parity;
using compile::Instruction;
using compile::Program;

namespace {

std::vector<Instruction>& section(Program& program, const std::string& name) {
  for (auto& section : program.sections) {
    if (section.name() == name) return section.instructions;
  }
  throw std::runtime_error("no section " + name);
}

void drop_all_reduces(Program& program) {
  for (auto& section : program.sections) {
    std::erase_if(section.instructions, [](const Instruction& i) {
      return i.kind == Instruction::Kind::collective || i.kind == Instruction::Kind::wait;
    });
  }
}

}  // namespace

TEST_CASE("a GPT trained by a program equals plain LibTorch", "[device]") {
  for (bool tied : {false, true}) {
    INFO("tied " << tied);
    const GptShape shape{.tied = tied};
    CHECK(compare(train_ranks(shape, {}, {}), train_eagerly(shape, {})) == "");
  }
}

TEST_CASE("ranks and microbatches train as one rank does, with dropout", "[device]") {
  for (double dropout : {0.0, 0.2}) {
    const GptShape shape{.dropout = dropout};
    const auto one = train_ranks(shape, {}, {});
    for (int64_t ranks : {1, 2, 4}) {
      for (int64_t microbatches : {1, 2, 4, 8}) {
        if (ranks * microbatches > 8) continue;
        INFO("dropout " << dropout << ", " << ranks << " ranks, " << microbatches
                        << " microbatches");
        CHECK(compare(train_ranks(shape, {}, {.count = ranks, .microbatches = microbatches}),
                      one) == "");
      }
    }
  }
}

TEST_CASE("a dropped all-reduce, wrong scale, skipped sum or reused seed is detected", "[device]") {
  const GptShape shape{.dropout = 0.2};
  const auto one = train_ranks(shape, {}, {});
  const Recipe recipe;
  CHECK(compare(train_ranks(shape, recipe, {.count = 2, .edit = drop_all_reduces}), one) != "");

  const auto average = [](Program& program) {
    for (auto& section : program.sections) {
      for (auto& instruction : section.instructions) {
        // Of gradients and losses; that of the label count stays, since both would cancel out.
        if (!instruction.in_place) continue;
        for (auto& [name, arg] : instruction.args) {
          if (name == "op") arg = std::string("avg");
        }
      }
    }
  };
  CHECK(compare(train_ranks(shape, recipe, {.count = 2, .edit = average}), one) != "");

  const auto skip = [](Program& program) {
    auto& list = section(program, "micro");
    const auto found = std::find_if(list.rbegin(), list.rend(), [](const Instruction& i) {
      return i.op == "perigee::accumulate_";
    });
    list.erase(std::next(found).base());
  };
  CHECK(compare(train_ranks(shape, recipe, {.microbatches = 2, .edit = skip}), one) != "");

  CHECK(compare(train_ranks(shape, recipe, {.count = 2, .one_seed = false}), one) != "");
}

TEST_CASE("running statistics are updated in the order of the microbatches", "[device]") {
  for (int64_t microbatches : {1, 2}) {
    const auto eager = train_convolution_eagerly(microbatches);
    for (int64_t ranks : {1, 2}) {
      INFO(microbatches << " microbatches, " << ranks << " ranks");
      CHECK(compare(train_convolution(ranks, microbatches), eager) == "");
    }
  }
}
