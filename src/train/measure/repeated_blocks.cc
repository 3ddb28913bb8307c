#include "train/measure/repeated_blocks.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "compile/draft/collective.h"
#include "simulate/op_cost.h"
#include "train/measure/block_names.h"

namespace perigee::train {
namespace {

using compile::Instruction;
using compile::Program;
using graph::ValueId;

// Number of blocks that stay of a row of identical ones; the last one is among them.
constexpr size_t kStay = BlockNames::kShortRow;
// Bytes that are touched in place of left-out blocks: at most the size of caches; fewer than the
// minimum have no effect.
constexpr int64_t kMaxTouched = 64 << 20, kMinTouched = 1 << 14;
// Name of the frame that is touched.
constexpr const char* kTouched = "touched";

bool is_message(const Instruction& instruction) {
  return instruction.op == "comm::send" || instruction.op == "comm::receive";
}

// How many instructions each instruction of a program represents; 0: left out.
class Weights {
 public:
  Weights(const Program& program, const RepeatedBlocks& repeats)
      : program_(program), repeats_(repeats), flats_(program) {
    std::set<int32_t> stay;
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::collective) continue;
        (of(instruction) > 0 ? stay : left_out_events_).insert(instruction.event);
      }
    }
    for (const auto event : stay) left_out_events_.erase(event);
  }

  double of(const Instruction& instruction) const {
    if (instruction.kind == Instruction::Kind::wait) {
      return left_out_events_.contains(instruction.event) ? 0 : 1;
    }
    if (is_message(instruction)) return 1;
    const auto flats = flats_of(instruction);
    if (!flats.empty()) {
      if (std::ranges::all_of(flats, [&](auto flat) { return is_left_out(flat); })) return 0;
      return flats.size() == 1 || std::ranges::count(flats, flats[0]) == std::ssize(flats)
                 ? of_flat(flats[0])
                 : 1;
    }
    if (const auto block = represents(instruction.scope)) return *block;
    const auto names = names_of(instruction);
    const bool none = !names.empty() && std::ranges::all_of(names, [&](auto name) {
      return represents(name).value_or(1) == 0;
    });
    return none ? 0 : 1;
  }

  // Returns whether all parameters of the bucket or unit are left out.
  bool is_left_out(std::string_view flat) const {
    const auto& members = flats_.members(flat);
    return !repeats_.kept.contains(flat) && !members.empty() &&
           std::ranges::all_of(members,
                               [&](const auto& name) { return represents(name).value_or(1) == 0; });
  }

  // Returns the buckets and units that an instruction reads or writes whole.
  std::vector<std::string_view> flats_of(const Instruction& instruction) const {
    std::vector<std::string_view> flats;
    each_value(instruction, [&](ValueId v) {
      const auto flat = flats_.of(program_.values[v.index].name);
      if (!flat.empty()) flats.push_back(flat);
    });
    return flats;
  }

  const Flats& flats() const { return flats_; }

  // Returns the block that holds a scope or parameter; "" for none.
  std::string_view block_of(std::string_view name) const {
    auto path = BlockNames::first(name);
    while (!path.empty() && !repeats_.represents.contains(path))
      path = BlockNames::next(name, path);
    return path;
  }

  template <class F>
  static void each_value(const Instruction& instruction, F f) {
    const graph::Node node{.op = instruction.op, .args = instruction.args};
    node.each_operand([&](ValueId v) {
      if (v.defined()) f(v);
    });
    for (auto v : instruction.outputs) {
      if (v.defined()) f(v);
    }
  }

 private:
  std::optional<double> represents(std::string_view name) const {
    const auto found = repeats_.represents.find(block_of(name));
    return found == repeats_.represents.end() ? std::nullopt : std::optional(found->second);
  }

  // A unit of one block represents the units of the blocks that the block represents; a bucket or
  // unit with parameters of several blocks represents itself.
  double of_flat(std::string_view flat) const {
    const auto& members = flats_.members(flat);
    if (repeats_.kept.contains(flat) || members.empty()) return 1;
    const auto block = block_of(*members.begin());
    const bool one = std::ranges::all_of(members,
                                         [&](const auto& name) { return block_of(name) == block; });
    return one ? represents(block).value_or(1) : 1;
  }

  // Returns the parameters whose gradients or states an instruction reads or writes.
  std::vector<std::string_view> names_of(const Instruction& instruction) const {
    std::vector<std::string_view> names;
    each_value(instruction, [&](ValueId v) {
      const auto& name = program_.values[v.index].name;
      const bool of_one = name.role == compile::ValueRole::gradient ||
                          name.role == compile::ValueRole::state;
      if (of_one) names.push_back(name.subject);
    });
    return names;
  }

  const Program& program_;
  const RepeatedBlocks& repeats_;
  Flats flats_;
  std::set<int32_t> left_out_events_;
};

// Returns the ops of each block: -1, program, section, ops, and so on for each section.
std::map<std::string, std::vector<int>> classes_of(const std::vector<const Program*>& programs,
                                                   std::vector<std::string>& order) {
  const BlockNames names(programs);
  std::map<std::string, int> numbers;
  std::map<std::string, std::vector<int>> classes;
  for (size_t p = 0; p < programs.size(); ++p) {
    for (size_t s = 0; s < programs[p]->sections.size(); ++s) {
      std::set<std::string_view> here;
      for (const auto& instruction : programs[p]->sections[s].instructions) {
        const auto block = names.of(instruction.scope);
        if (block.empty() || instruction.kind != Instruction::Kind::op) continue;
        const auto [known, added] = classes.try_emplace(std::string(block));
        if (added) order.emplace_back(block);
        auto& list = known->second;
        if (here.insert(known->first).second) {
          list.insert(list.end(), {-1, static_cast<int>(p), static_cast<int>(s)});
        }
        const auto key = compile::key(simulate::instance_of(*programs[p], instruction));
        list.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
      }
    }
  }
  return classes;
}

// Keeps one of each size of the buckets and units that would be left out.
void keep_distinct(const Program& program, RepeatedBlocks& repeats) {
  const Weights weights(program, repeats);
  std::set<std::vector<int64_t>> known;
  for (const bool left_out : {false, true}) {
    for (const auto& [flat, sizes] : weights.flats().sizes()) {
      if (weights.is_left_out(flat) != left_out) continue;
      if (known.insert(sizes).second && left_out) repeats.kept.emplace(flat);
    }
  }
}

// Returns whether all ranks of each group start the same collectives.
bool same_collectives(const compile::Programs& programs, const mesh::Mesh& mesh,
                      const RepeatedBlocks& repeats) {
  std::vector<std::vector<std::vector<std::pair<int32_t, std::string_view>>>> kept;
  for (const auto& program : programs.programs) {
    const Weights weights(program, repeats);
    auto& sections = kept.emplace_back();
    for (const auto& section : program.sections) {
      auto& list = sections.emplace_back();
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::collective || is_message(instruction) ||
            compile::is_copy(instruction.op) || weights.of(instruction) == 0) {
          continue;
        }
        list.emplace_back(instruction.stream, instruction.op);
      }
    }
  }
  using Group = std::pair<compile::Stream, std::vector<int64_t>>;
  std::map<Group, std::vector<std::string_view>> first;
  for (size_t position = 0; position < programs.ranks.size(); ++position) {
    const auto streams = programs.streams_of(position);
    std::map<int32_t, std::vector<std::string_view>> own;
    for (const auto& run : programs.of(position).order) {
      for (const auto& [stream, op] : kept[programs.program[position]][run.section]) {
        own[stream].push_back(op);
      }
    }
    for (auto& [stream, ops] : own) {
      Group group{streams[stream],
                  compile::ranks_of(mesh, streams[stream], programs.ranks[position])};
      const auto [at, added] = first.try_emplace(std::move(group), ops);
      if (!added && at->second != ops) return false;
    }
  }
  return true;
}

// Leaves instructions out of one section.
class SectionShortener {
 public:
  SectionShortener(Program& program, const Weights& weights,
                   const std::set<const Instruction*>& needed)
      : program_(program), weights_of_(weights), needed_(needed) {}

  // Returns the remaining instructions and fills `represents` for them.
  std::vector<Instruction> run(const std::vector<Instruction>& list,
                               std::vector<double>& represents) {
    weigh(list);
    find_copies(list);
    std::vector<Instruction> rest;
    const auto add = [&](Instruction instruction, double weight) {
      rest.push_back(std::move(instruction));
      represents.push_back(weight);
    };
    for (size_t i = 0; i < list.size(); ++i) {
      if (weights_[i] == 0) {
        note(list[i]);
        if (const auto copy = copies_.find(i); copy != copies_.end()) add(copy->second, 0);
        continue;
      }
      const bool of_block = list[i].kind == Instruction::Kind::op &&
                            !weights_of_.block_of(list[i].scope).empty();
      if (of_block) touch(add);
      add(list[i], weights_[i]);
    }
    touch(add);
    return rest;
  }

 private:
  void weigh(const std::vector<Instruction>& list) {
    for (const auto& instruction : list) {
      const double weight = weights_of_.of(instruction);
      weights_.push_back(weight == 0 && needed_.contains(&instruction) ? 1 : weight);
    }
  }

  ValueId root(ValueId v) const {
    const auto base = program_.values[v.index].view_of;
    return base.defined() ? base : v;
  }

  // Where a remaining instruction reads the result of a left-out one, copies the result of the
  // corresponding instruction of a block that stays.
  void find_copies(const std::vector<Instruction>& list) {
    std::map<std::string_view, std::vector<size_t>> of_block;
    std::map<size_t, size_t> place;             // index of an instruction in its block
    std::map<size_t, std::string_view> before;  // the last block before it that stays
    std::map<ValueId, std::pair<size_t, size_t>> writers;
    std::string_view last;
    for (size_t i = 0; i < list.size(); ++i) {
      if (weights_[i] > 0) {
        const graph::Node node{.op = list[i].op, .args = list[i].args};
        node.each_operand([&](ValueId v) {
          const auto writer = v.defined() ? writers.find(root(v)) : writers.end();
          if (writer == writers.end() || weights_[writer->second.first] > 0) return;
          const auto [w, output] = writer->second;
          const auto twin = of_block.find(before[w]);
          if (twin == of_block.end() || place[w] >= twin->second.size()) return;
          copy(list, {.from = twin->second[place[w]], .to = w}, output);
        });
      }
      const auto block = weights_of_.block_of(list[i].scope);
      const bool counts = list[i].kind == Instruction::Kind::op ||
                          (list[i].kind == Instruction::Kind::collective &&
                           weights_of_.flats_of(list[i]).empty());
      if (!block.empty() && counts) {
        place[i] = of_block[block].size();
        of_block[block].push_back(i);
        if (weights_[i] > 0) last = block;
        before[i] = last;
      }
      for (size_t k = 0; k < list[i].outputs.size(); ++k) {
        if (list[i].outputs[k].defined()) writers[root(list[i].outputs[k])] = {i, k};
      }
    }
  }

  struct Twins {
    size_t from, to;
  };
  void copy(const std::vector<Instruction>& list, Twins twins, size_t output) {
    const auto &from = list[twins.from], &to = list[twins.to];
    if (from.op != to.op || output >= from.outputs.size() || !from.outputs[output].defined())
      return;
    const auto source = from.outputs[output], target = to.outputs[output];
    const auto &a = program_.values[source.index], &b = program_.values[target.index];
    if (a.type != b.type || a.place.frame < 0 || b.place.frame < 0) return;
    const bool disjoint = a.place.frame != b.place.frame ||
                          std::abs(a.place.offset - b.place.offset) >= a.type.bytes();
    if (!disjoint) return;
    copies_[twins.to] = {.op = "perigee::copy_",
                         .args = {{"self", target}, {"source", source}},
                         .outputs = {target},
                         .in_place = true,
                         .scope = to.scope,
                         .phase = to.phase};
  }

  // Adds the memory of a left-out instruction to the memory to touch.
  void note(const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::wait) return;
    Weights::each_value(instruction, [&](ValueId v) {
      const auto& value = program_.values[root(v).index];
      if (value.place.frame < 0 || program_.frames[value.place.frame].host) return;
      if (used_.insert({value.place.frame, value.place.offset}).second) {
        bytes_ += program_.values[v.index].type.bytes();
      }
    });
  }

  template <class Add>
  void touch(const Add& add) {
    const auto half = std::min(bytes_, kMaxTouched) / 2 / 64 * 64;
    used_.clear();
    bytes_ = 0;
    if (half < kMinTouched) return;
    if (program_.frames.empty() || program_.frames.back().name != kTouched) {
      program_.frames.push_back({.kind = compile::Frame::Kind::scratch, .name = kTouched});
      for (auto& slot : program_.slots) slot.push_back(0);
    }
    auto& frame = program_.frames.back();
    frame.bytes = std::max(frame.bytes, 2 * half);
    const graph::TensorType type{graph::DType::float32, {half / 4}};
    const auto place = static_cast<int32_t>(program_.frames.size() - 1);
    const auto value = [&](int64_t offset) {
      program_.values.push_back({.type = type, .strides = {1}, .place = {place, offset}});
      return ValueId{static_cast<int32_t>(program_.values.size() - 1)};
    };
    const auto target = value(0), source = value(half);
    add({.op = "perigee::copy_",
         .args = {{"self", target}, {"source", source}},
         .outputs = {target},
         .in_place = true},
        0);
  }

  Program& program_;
  const Weights& weights_of_;
  const std::set<const Instruction*>& needed_;
  std::vector<double> weights_;
  std::map<size_t, Instruction> copies_;  // by the instruction in whose place they run
  std::set<std::pair<int32_t, int64_t>> used_;
  int64_t bytes_ = 0;
};

// Returns the first instruction of each distinct op all of whose instructions would be left out.
std::set<const Instruction*> needed_ops(const Program& program, const Weights& weights) {
  std::set<std::string> stay;
  std::map<std::string, const Instruction*> left_out;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != Instruction::Kind::op) continue;
      auto key = compile::key(simulate::instance_of(program, instruction));
      if (weights.of(instruction) > 0) {
        stay.insert(std::move(key));
      } else {
        left_out.try_emplace(std::move(key), &instruction);
      }
    }
  }
  std::set<const Instruction*> needed;
  for (const auto& [key, instruction] : left_out) {
    if (!stay.contains(key)) needed.insert(instruction);
  }
  return needed;
}

}  // namespace

int64_t RepeatedBlocks::left_out() const {
  return std::ranges::count_if(represents, [](const auto& block) { return block.second == 0; });
}

RepeatedBlocks find_repeated_blocks(const compile::Programs& programs, const mesh::Mesh& mesh) {
  std::vector<const Program*> list;
  for (const auto& program : programs.programs) list.push_back(&program);
  std::vector<std::string> order;
  std::map<std::vector<int>, std::vector<std::string>> rows;
  const auto classes = classes_of(list, order);
  for (const auto& block : order) rows[classes.at(block)].push_back(block);
  RepeatedBlocks repeats;
  for (const auto& [ops, row] : rows) {
    const auto all = row.size();
    for (size_t i = 0; i < all; ++i) {
      const bool end = i == 0 || i + 1 == all;
      const bool stays = i + 1 < kStay || end;
      const double between = static_cast<double>(all) - 2;
      const double share = end || all <= kStay ? 1 : between / static_cast<double>(kStay - 2);
      repeats.represents[row[i]] = stays ? share : 0;
    }
  }
  for (const auto& program : programs.programs) keep_distinct(program, repeats);
  if (!same_collectives(programs, mesh, repeats)) return {};
  return repeats;
}

ShortProgram shorten(Program program, const RepeatedBlocks& repeats) {
  ShortProgram result;
  const auto whole = program;
  const Weights weights(whole, repeats);
  const auto needed = needed_ops(whole, weights);
  for (size_t s = 0; s < whole.sections.size(); ++s) {
    SectionShortener shortener(program, weights, needed);
    auto& represents = result.represents.emplace_back();
    program.sections[s].instructions = shortener.run(whole.sections[s].instructions, represents);
  }
  result.program = std::move(program);
  return result;
}

}  // namespace perigee::train
