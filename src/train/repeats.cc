#include "train/repeats.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "compile/collective.h"
#include "search/op_cost.h"
#include "train/block_names.h"

namespace perigee::train {
namespace {

using compile::Instruction;
using compile::Program;
using graph::ValueId;

// Of alike blocks: the last is one.
constexpr size_t kStay = BlockNames::kMostWhole;
// Bytes, of which caches hold no more, and fewer than which change nothing.
constexpr int64_t kMostTouched = 64 << 20, kLeastTouched = 1 << 14;
constexpr const char* kTouched = "touched";  // a frame

bool is_message(const Instruction& instruction) {
  return instruction.op == "comm::send" || instruction.op == "comm::receive";
}

// Says of each instruction of a program how many it stands for.
class Standing {
 public:
  Standing(const Program& program, const Repeats& repeats)
      : program_(program), repeats_(repeats), flats_(program) {
    std::set<int32_t> stay;
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::collective) continue;
        (of(instruction) > 0 ? stay : gone_events_).insert(instruction.event);
      }
    }
    for (const auto event : stay) gone_events_.erase(event);
  }

  double of(const Instruction& instruction) const {
    if (instruction.kind == Instruction::Kind::wait) {
      return gone_events_.contains(instruction.event) ? 0 : 1;
    }
    if (is_message(instruction)) return 1;
    const auto flats = flats_of(instruction);
    if (!flats.empty()) {
      if (std::ranges::all_of(flats, [&](auto flat) { return gone(flat); })) return 0;
      return flats.size() == 1 || std::ranges::count(flats, flats[0]) == std::ssize(flats)
                 ? of_flat(flats[0])
                 : 1;
    }
    if (const auto block = stands_for(instruction.scope)) return *block;
    const auto names = names_of(instruction);
    const bool none = !names.empty() && std::ranges::all_of(names, [&](auto name) {
      return stands_for(name).value_or(1) == 0;
    });
    return none ? 0 : 1;
  }

  // Whether all that the bucket or unit has is left out.
  bool gone(std::string_view flat) const {
    const auto& members = flats_.members(flat);
    return !repeats_.kept.contains(flat) && !members.empty() &&
           std::ranges::all_of(members,
                               [&](const auto& name) { return stands_for(name).value_or(1) == 0; });
  }

  // Returns the buckets and units that an instruction reads or writes as such.
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
    while (!path.empty() && !repeats_.stands_for.contains(path))
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
  std::optional<double> stands_for(std::string_view name) const {
    const auto found = repeats_.stands_for.find(block_of(name));
    return found == repeats_.stands_for.end() ? std::nullopt : std::optional(found->second);
  }

  // A unit of one block stands for those of as many blocks; of what else has parameters of several
  // each is one.
  double of_flat(std::string_view flat) const {
    const auto& members = flats_.members(flat);
    if (repeats_.kept.contains(flat) || members.empty()) return 1;
    const auto block = block_of(*members.begin());
    const bool one =
        std::ranges::all_of(members, [&](const auto& name) { return block_of(name) == block; });
    return one ? stands_for(block).value_or(1) : 1;
  }

  // Returns the parameters whose gradients or states an instruction reads or writes.
  std::vector<std::string_view> names_of(const Instruction& instruction) const {
    std::vector<std::string_view> names;
    each_value(instruction, [&](ValueId v) {
      const std::string_view name = program_.values[v.index].name;
      const auto colon = name.find(':');
      if (colon != name.npos && name.find('/') == name.npos)
        names.push_back(name.substr(colon + 1));
    });
    return names;
  }

  const Program& program_;
  const Repeats& repeats_;
  Flats flats_;
  std::set<int32_t> gone_events_;
};

// What the blocks of rows do, by block: (program, section, ops...).
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
        const auto key = compile::key(search::instance_of(*programs[p], instruction));
        list.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
      }
    }
  }
  return classes;
}

// Keeps one of each size of the buckets and units that would go.
void keep_distinct(const Program& program, Repeats& repeats) {
  const Standing standing(program, repeats);
  std::set<std::vector<int64_t>> known;
  for (const bool gone : {false, true}) {
    for (const auto& [flat, sizes] : standing.flats().sizes()) {
      if (standing.gone(flat) != gone) continue;
      if (known.insert(sizes).second && gone) repeats.kept.emplace(flat);
    }
  }
}

// Whether all ranks of each group start the same collectives.
bool meet(const compile::Programs& programs, const mesh::Mesh& mesh, const Repeats& repeats) {
  std::vector<std::vector<std::vector<std::pair<int32_t, std::string_view>>>> kept;
  for (const auto& program : programs.programs) {
    const Standing standing(program, repeats);
    auto& sections = kept.emplace_back();
    for (const auto& section : program.sections) {
      auto& list = sections.emplace_back();
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::collective || is_message(instruction) ||
            compile::is_copy(instruction.op) || standing.of(instruction) == 0) {
          continue;
        }
        list.emplace_back(instruction.stream, instruction.op);
      }
    }
  }
  using Group = std::pair<std::string, std::vector<int64_t>>;
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

// Takes instructions out of one section.
class Cut {
 public:
  Cut(Program& program, const Standing& standing, const std::set<const Instruction*>& needed)
      : program_(program), standing_(standing), needed_(needed) {}

  // Fills `stands_for` alike.
  std::vector<Instruction> run(const std::vector<Instruction>& list,
                               std::vector<double>& stands_for) {
    weigh(list);
    find_copies(list);
    std::vector<Instruction> rest;
    const auto add = [&](Instruction instruction, double weight) {
      rest.push_back(std::move(instruction));
      stands_for.push_back(weight);
    };
    for (size_t i = 0; i < list.size(); ++i) {
      if (weights_[i] == 0) {
        note(list[i]);
        if (const auto copy = copies_.find(i); copy != copies_.end()) add(copy->second, 0);
        continue;
      }
      const bool of_block =
          list[i].kind == Instruction::Kind::op && !standing_.block_of(list[i].scope).empty();
      if (of_block) touch(add);
      add(list[i], weights_[i]);
    }
    touch(add);
    return rest;
  }

 private:
  void weigh(const std::vector<Instruction>& list) {
    for (const auto& instruction : list) {
      const double weight = standing_.of(instruction);
      weights_.push_back(weight == 0 && needed_.contains(&instruction) ? 1 : weight);
    }
  }

  ValueId root(ValueId v) const {
    const auto base = program_.values[v.index].view_of;
    return base.defined() ? base : v;
  }

  // Copies of what the blocks that stay had made, in the places of what others would have made for
  // them.
  void find_copies(const std::vector<Instruction>& list) {
    std::map<std::string_view, std::vector<size_t>> of_block;
    std::map<size_t, size_t> place;             // of an instruction in its block
    std::map<size_t, std::string_view> before;  // the last block that stays
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
      const auto block = standing_.block_of(list[i].scope);
      const bool counts =
          list[i].kind == Instruction::Kind::op ||
          (list[i].kind == Instruction::Kind::collective && standing_.flats_of(list[i]).empty());
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
    const bool apart = a.place.frame != b.place.frame ||
                       std::abs(a.place.offset - b.place.offset) >= a.type.bytes();
    if (!apart) return;
    copies_[twins.to] = {.op = "perigee::copy_",
                         .args = {{"self", target}, {"source", source}},
                         .outputs = {target},
                         .in_place = true,
                         .scope = to.scope,
                         .phase = to.phase};
  }

  // Counts the memory that an instruction which is left out would have used.
  void note(const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::wait) return;
    Standing::each_value(instruction, [&](ValueId v) {
      const auto& value = program_.values[root(v).index];
      if (value.place.frame < 0 || program_.frames[value.place.frame].host) return;
      if (used_.insert({value.place.frame, value.place.offset}).second) {
        bytes_ += program_.values[v.index].type.bytes();
      }
    });
  }

  template <class Add>
  void touch(const Add& add) {
    const auto half = std::min(bytes_, kMostTouched) / 2 / 64 * 64;
    used_.clear();
    bytes_ = 0;
    if (half < kLeastTouched) return;
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
  const Standing& standing_;
  const std::set<const Instruction*>& needed_;
  std::vector<double> weights_;
  std::map<size_t, Instruction> copies_;  // by the instruction in whose place they run
  std::set<std::pair<int32_t, int64_t>> used_;
  int64_t bytes_ = 0;
};

// The first of each distinct op of which none would stay.
std::set<const Instruction*> needed_ops(const Program& program, const Standing& standing) {
  std::set<std::string> stay;
  std::map<std::string, const Instruction*> gone;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != Instruction::Kind::op) continue;
      auto key = compile::key(search::instance_of(program, instruction));
      if (standing.of(instruction) > 0) {
        stay.insert(std::move(key));
      } else {
        gone.try_emplace(std::move(key), &instruction);
      }
    }
  }
  std::set<const Instruction*> needed;
  for (const auto& [key, instruction] : gone) {
    if (!stay.contains(key)) needed.insert(instruction);
  }
  return needed;
}

}  // namespace

int64_t Repeats::left_out() const {
  return std::ranges::count_if(stands_for, [](const auto& block) { return block.second == 0; });
}

Repeats find_repeats(const compile::Programs& programs, const mesh::Mesh& mesh) {
  std::vector<const Program*> list;
  for (const auto& program : programs.programs) list.push_back(&program);
  std::vector<std::string> order;
  std::map<std::vector<int>, std::vector<std::string>> rows;
  const auto classes = classes_of(list, order);
  for (const auto& block : order) rows[classes.at(block)].push_back(block);
  Repeats repeats;
  for (const auto& [ops, row] : rows) {
    const auto all = row.size();
    for (size_t i = 0; i < all; ++i) {
      const bool end = i == 0 || i + 1 == all;
      const bool stays = i + 1 < kStay || end;
      const double between = static_cast<double>(all) - 2;
      const double share = end || all <= kStay ? 1 : between / static_cast<double>(kStay - 2);
      repeats.stands_for[row[i]] = stays ? share : 0;
    }
  }
  for (const auto& program : programs.programs) keep_distinct(program, repeats);
  if (!meet(programs, mesh, repeats)) return {};
  return repeats;
}

Shortened leave_out(Program program, const Repeats& repeats) {
  Shortened result;
  const auto whole = program;
  const Standing standing(whole, repeats);
  const auto needed = needed_ops(whole, standing);
  for (size_t s = 0; s < whole.sections.size(); ++s) {
    Cut cut(program, standing, needed);
    auto& stands_for = result.stands_for.emplace_back();
    program.sections[s].instructions = cut.run(whole.sections[s].instructions, stands_for);
  }
  result.program = std::move(program);
  return result;
}

}  // namespace perigee::train
