// Addresses for everything: lifetimes over the order in which a step runs, in-place reuse, one
// packing per frame.
#include "compile/memory/memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "compile/draft/layout.h"
#include "compile/memory/pack.h"
#include "compile/stages/slots.h"
#include "graph/ops.h"

namespace perigee::compile {

namespace {

// The lifetime of a value, in sections and ticks. An instruction has a tick for each allocation and
// one at its end.
struct Lifetime {
  int64_t start = -1, end = -1;
  int32_t first_section = -1, last_section = -1;
  int64_t last_access = -1;  // first tick of the last op that touches it
};

int64_t ticks(const Instruction& instruction) {
  return static_cast<int64_t>(instruction.allocations.size()) + 2;
}

// Returns whether two neighbours are one op, of which each run has one: their results have memory
// of different purposes.
bool are_alternatives(const DraftInstruction& a, const DraftInstruction& b) {
  return (a.when & b.when) == 0 && a.instruction.kind == Instruction::Kind::op &&
         a.instruction.op == b.instruction.op && a.instruction.args == b.instruction.args;
}

class Memory {
 public:
  explicit Memory(Draft& draft)
      : draft_(draft), lives_(draft.program.values.size()), deferred_(deferred_operands(draft)) {}

  void run() {
    measure();
    extend();
    reuse();
    place();
  }

 private:
  void touch(ValueId v, int32_t section, int64_t start, int64_t end, int64_t access) {
    auto& life = lives_[draft_.root(v).index];
    if (life.start < 0) {
      life.start = start;
      life.first_section = section;
    }
    life.end = end;  // instructions come in order, so that it never falls
    life.last_section = section;
    life.last_access = access;
  }

  // Finds lifetimes from the instructions.
  void measure() {
    std::vector<std::vector<ValueId>> waiting(draft_.program.events);
    bytes_.resize(draft_.program.values.size());
    readers_.resize(draft_.program.values.size());
    for (size_t v = 0; v < bytes_.size(); ++v) {
      const auto& value = draft_.program.values[v];
      if (value.view_of.defined()) continue;
      bytes_[v] = extent(value.type.shape, value.strides) *
                  static_cast<int64_t>(graph::size_of(value.type.dtype));
      bytes_[v] = std::max(bytes_[v], draft_.homes[v].bytes);
    }
    int64_t now = 0;
    for (size_t s = 0; s < draft_.sections.size(); ++s) {
      const auto section = static_cast<int32_t>(s);
      begin_.push_back(now);
      const DraftInstruction* before = nullptr;
      int64_t access = now;
      for (auto& draft : draft_.sections[s].instructions) {
        const auto& instruction = draft.instruction;
        const int64_t end = now + ticks(instruction) - 1;
        if (!before || !are_alternatives(*before, draft)) access = now;
        before = &draft;
        each_operand(instruction, [&](ValueId v) { touch(v, section, now, end, access); });
        for (size_t k = 0; k < instruction.outputs.size(); ++k) {
          const ValueId v = instruction.outputs[k];
          if (!v.defined()) continue;
          const int32_t allocation = draft.output_allocation[k];
          touch(v, section, now + std::max(allocation, 0), end, access);
          if (allocation >= 0 && !draft_.value(v).view_of.defined()) {
            bytes_[v.index] = std::max(bytes_[v.index], instruction.allocations[allocation].bytes);
          }
        }
        if (instruction.kind == Instruction::Kind::collective) {
          auto& open = waiting[instruction.event];
          each_operand(instruction, [&](ValueId v) {
            open.push_back(v);
            ++readers_[draft_.root(v).index];
          });
          open.insert(open.end(), instruction.outputs.begin(), instruction.outputs.end());
        } else if (instruction.kind == Instruction::Kind::wait) {
          // A collective's operands and results are in use until the wait.
          for (ValueId v : waiting[instruction.event]) {
            const auto& life = lives_[draft_.root(v).index];
            touch(v, section, now, end, life.last_access);
          }
        }
        now += ticks(instruction);
      }
      begin_.push_back(now);
      if (draft_.sections[s].role.part.defined()) {
        if (first_part_ < 0) first_part_ = section;
        last_part_ = section;
      }
    }
    now_ = now;
    // Messages that are received early arrive before their section runs.
    for (size_t v = 0; v < lives_.size(); ++v) {
      auto& life = lives_[v];
      if (!draft_.homes[v].received_early || life.start < 0) continue;
      life.start = begin_[2 * life.first_section];
      life.end = begin_[2 * life.first_section + 1];
    }
    // A value that a backward pass sends is in use until the next forward pass in its copy of
    // the frame.
    for (auto& draft : draft_.sections) {
      for (auto& sent : draft.instructions) {
        const auto& instruction = sent.instruction;
        if (instruction.op != "comm::send" || draft.role.kind == SectionKind::forward) continue;
        each_operand(instruction, [&](ValueId v) {
          auto& life = lives_[draft_.root(v).index];
          life.end = begin_[2 * last_part_ + 1];
          life.last_section = last_part_;
          sent_[draft_.root(v).index] = draft.role.part;
        });
      }
    }
  }

  // Returns the pipeline part in whose frame the value lies: values that one section makes for a
  // microbatch and another section uses. Undefined for all other values.
  PartId part_of(int32_t root) const {
    const auto& life = lives_[root];
    if (first_part_ < 0 || life.start < 0 || draft_.homes[root].outlives ||
        draft_.homes[root].kind == Home::Kind::persistent) {
      return {};
    }
    if (draft_.homes[root].received_early) {
      auto buffer = draft_.sections[life.first_section].role.part;
      buffer.received = true;
      return buffer;
    }
    if (const auto read = deferred_.find(root); read != deferred_.end()) return read->second;
    if (const auto sent = sent_.find(root); sent != sent_.end()) return sent->second;
    const auto& first = draft_.sections[life.first_section].role.part;
    const auto& last = draft_.sections[life.last_section].role.part;
    const bool several_sections = life.first_section != life.last_section;
    return first.defined() && last.defined() && several_sections ? first : PartId{};
  }

  bool crosses(int32_t root) const {
    return lives_[root].first_section != lives_[root].last_section || draft_.homes[root].outlives;
  }

  // Extends lifetimes over repeated sections: a value that is made outside of one and used in it
  // must live over all of its runs.
  void extend() {
    // The sections of parts alternate even for one microbatch.
    const bool several = draft_.program.microbatches > 1 || draft_.has_parts();
    for (size_t v = 0; v < lives_.size(); ++v) {
      auto& life = lives_[v];
      if (life.start < 0) continue;
      if (draft_.homes[v].outlives) life.end = now_;
      if (part_of(static_cast<int32_t>(v)).defined()) continue;
      if (!several || !crosses(static_cast<int32_t>(v))) continue;
      // The sections of a pipeline's parts alternate: all together are one that repeats.
      const auto first = [&](int32_t s) {
        return draft_.sections[s].role.part.defined() ? first_part_ : s;
      };
      const auto last = [&](int32_t s) {
        return draft_.sections[s].role.part.defined() ? last_part_ : s;
      };
      if (draft_.sections[life.first_section].repeats) {
        life.start = begin_[2 * first(life.first_section)];
      }
      if (draft_.sections[life.last_section].repeats) {
        life.end = std::max(life.end, begin_[2 * last(life.last_section) + 1]);
      }
    }
  }

  // Places the result of an op that may write in place, or of an all-reduce, in the memory of an
  // operand that dies there.
  void reuse() {
    group_.resize(lives_.size());
    std::iota(group_.begin(), group_.end(), 0);
    for (auto& section : draft_.sections) {
      for (auto& draft : section.instructions) {
        const auto& instruction = draft.instruction;
        if (instruction.in_place || instruction.outputs.empty()) continue;
        const ValueId out = instruction.outputs[0];
        if (!out.defined() || draft_.value(out).view_of.defined()) continue;
        const bool pointwise = graph::is_pointwise(instruction.op) &&
                               instruction.allocations.size() == 1;
        const bool op = instruction.kind == Instruction::Kind::op &&
                        (pointwise || graph::writes_in_place(instruction.op));
        const bool reduce = instruction.kind == Instruction::Kind::collective &&
                            instruction.op == "comm::all_reduce";
        if (!op && !reduce) continue;
        std::vector<ValueId> operands;
        each_operand(instruction, [&](ValueId v) { operands.push_back(v); });
        for (ValueId v : operands) {
          // Another collective that reads it may still be in flight.
          if (readers_[draft_.root(v).index] > (reduce ? 1 : 0)) continue;
          if (!can_take(v, out, operands)) continue;
          const int32_t from = find(draft_.root(v).index);
          group_[out.index] = from;
          break;
        }
      }
    }
  }

  bool can_take(ValueId v, ValueId out, const std::vector<ValueId>& operands) {
    const int32_t root = draft_.root(v).index;
    const auto& value = draft_.value(v);
    const auto& result = draft_.value(out);
    const auto &home = draft_.homes[root], &wanted = draft_.homes[out.index];
    if (home.kind == Home::Kind::persistent || home.kind != wanted.kind ||
        home.stream != wanted.stream || home.host != wanted.host || crosses(root) ||
        crosses(out.index) || part_of(root) != part_of(out.index)) {
      return false;
    }
    // The operand's last use is the instruction that makes the result.
    const int64_t made = lives_[out.index].start;
    if (lives_[root].last_access != made || find(root) == find(out.index)) return false;
    if (value.type != result.type || value.strides != result.strides ||
        draft_.view_offset[v.index] != 0 || value.type.bytes() == 0 ||
        bytes_[root] != bytes_[out.index]) {
      return false;
    }
    return std::all_of(operands.begin(), operands.end(), [&](ValueId o) {
      return draft_.root(o).index != root ||
             (draft_.value(o).strides == value.strides && draft_.view_offset[o.index] == 0);
    });
  }

  int32_t find(int32_t v) const {
    while (group_[v] != v) v = group_[v];
    return v;
  }

  // Returns the frame of that name; appends `frame` where it is new.
  int32_t frame_named(Frame frame) {
    const auto [at, added] = named_.emplace(frame.name, draft_.program.frames.size());
    if (added) draft_.program.frames.push_back(std::move(frame));
    return at->second;
  }

  int32_t frame_of_part(const PartId& part, bool host = false) {
    const auto owner = draft_.frame_of(part);
    const auto frame = frame_named(
        {.kind = Frame::Kind::microbatch, .name = frame_name(owner, host), .host = host});
    part_frames_.emplace(frame, owner);
    return frame;
  }

  int32_t frame_of(const Home& home) {
    if (home.borrowed) {
      return frame_named({.kind = Frame::Kind::persistent,
                          .name = home.host ? "borrowed host" : "borrowed",
                          .borrowed = true,
                          .host = home.host});
    }
    if (home.host) {
      const bool lasts = home.kind == Home::Kind::persistent;
      return frame_named({.kind = lasts ? Frame::Kind::persistent : Frame::Kind::scratch,
                          .name = lasts ? "persistent host" : "scratch host",
                          .host = true});
    }
    if (home.holders > 1) {
      return frame_named({.kind = Frame::Kind::persistent,
                          .name = draft_.program.streams[home.stream].name(),
                          .held_by = home.stream,
                          .holders = home.holders});
    }
    if (home.kind == Home::Kind::persistent) return 0;
    if (home.kind == Home::Kind::scratch) return 1;
    const auto stream = static_cast<size_t>(home.stream);
    if (frames_.size() <= stream) frames_.resize(stream + 1, -1);
    if (frames_[stream] < 0) {
      frames_[stream] = static_cast<int32_t>(draft_.program.frames.size());
      Frame frame;
      frame.kind = Frame::Kind::communication;
      frame.name = draft_.program.streams[stream].name();
      draft_.program.frames.push_back(frame);
    }
    return frames_[stream];
  }

  void place() {
    auto& program = draft_.program;
    program.frames.push_back({Frame::Kind::persistent, "persistent"});
    program.frames.push_back({Frame::Kind::scratch, "scratch"});
    for (const auto& section : draft_.sections) {
      if (section.role.part.defined()) frame_of_part(section.role.part);
    }
    // The blocks of a frame, separately for each part that shares it.
    struct Content {
      std::vector<Block> blocks;
      std::vector<Address*> places;
    };
    std::map<std::pair<int32_t, PartId>, Content> contents;
    auto add = [&](int32_t frame, Block block, Address* place, const PartId& part = {}) {
      place->frame = frame;
      auto& content = contents[{frame, part}];
      content.blocks.push_back(block);
      content.places.push_back(place);
    };
    std::vector<Lifetime> merged = lives_;
    for (size_t v = 0; v < lives_.size(); ++v) {
      const int32_t group = find(static_cast<int32_t>(v));
      if (group == static_cast<int32_t>(v) || lives_[v].start < 0) continue;
      merged[group].start = std::min(merged[group].start, lives_[v].start);
      merged[group].end = std::max(merged[group].end, lives_[v].end);
    }
    for (size_t v = 0; v < lives_.size(); ++v) {
      auto& value = program.values[v];
      if (value.view_of.defined() || bytes_[v] == 0 ||
          find(static_cast<int32_t>(v)) != static_cast<int32_t>(v)) {
        continue;
      }
      const auto part = part_of(static_cast<int32_t>(v));
      const auto& home = draft_.homes[v];
      const int32_t frame = part.defined() ? frame_of_part(part, home.host) : frame_of(home);
      if (program.frames[frame].kind == Frame::Kind::persistent) {
        value.place = {frame, program.frames[frame].bytes};
        program.frames[frame].bytes += align(bytes_[v]);
      } else if (merged[v].start >= 0) {
        add(frame, {bytes_[v], merged[v].start, merged[v].end}, &value.place, part);
      }
    }
    int64_t now = 0;
    for (auto& section : draft_.sections) {
      for (auto& draft : section.instructions) {
        place_temporaries(draft, now, add);
        now += ticks(draft.instruction);
      }
    }
    for (auto& [key, content] : contents) {
      auto& frame = program.frames[key.first];
      if (frame.kind == Frame::Kind::communication) count_moments(content.blocks);
      const Packing packing = pack(content.blocks);
      for (size_t b = 0; b < content.blocks.size(); ++b) {
        content.places[b]->offset = packing.offsets[b];
      }
      frame.bytes = std::max(frame.bytes, packing.bytes);
    }
    for (size_t v = 0; v < program.values.size(); ++v) {
      auto& value = program.values[v];
      if (!value.view_of.defined())
        value.place = program.values[find(static_cast<int32_t>(v))].place;
    }
    for (size_t v = 0; v < program.values.size(); ++v) {
      auto& value = program.values[v];
      if (!value.view_of.defined()) continue;
      value.place = program.values[value.view_of.index].place;
      if (value.type.numel() == 0) value.place = {};
      if (value.place.frame >= 0) value.place.offset += draft_.view_offset[v];
    }
    for (auto& section : draft_.sections) {
      for (auto& draft : section.instructions) {
        auto& instruction = draft.instruction;
        for (size_t k = 0; k < instruction.outputs.size(); ++k) {
          const int32_t a = draft.output_allocation[k];
          if (a >= 0 && instruction.outputs[k].defined()) {
            instruction.allocations[a].place = draft_.value(instruction.outputs[k]).place;
          }
        }
      }
    }
    if (!part_frames_.empty()) {
      const auto copies = copies_of_frames(draft_);
      for (const auto& [frame, part] : part_frames_) {
        program.frames[frame].copies = copies.at(part);
      }
    }
    for (auto& frame : program.frames) {
      if (frame.borrowed) continue;
      // Equal shares, so that the ranks' counts add up to the memory.
      const auto whole = kAlignment * frame.holders;
      if (frame.holders > 1) frame.bytes = (frame.bytes + whole - 1) / whole * whole;
      (frame.host ? program.host_bytes : program.peak_bytes) += frame.share();
    }
  }

  // Replaces times by their order among the starts and ends of the frame's blocks, so that ranks
  // that compute differently between their collectives get the same packing.
  static void count_moments(std::vector<Block>& blocks) {
    std::vector<int64_t> moments;
    for (const auto& block : blocks) moments.insert(moments.end(), {block.start, block.end});
    std::sort(moments.begin(), moments.end());
    moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
    const auto number = [&](int64_t moment) {
      return std::lower_bound(moments.begin(), moments.end(), moment) - moments.begin();
    };
    for (auto& block : blocks) {
      block.start = number(block.start);
      block.end = number(block.end);
    }
  }

  // Adds an op's temporaries, which live within the call.
  void place_temporaries(DraftInstruction& draft, int64_t now, auto add) {
    auto& allocations = draft.instruction.allocations;
    std::vector<bool> result(allocations.size());
    for (size_t k = 0; k < draft.output_allocation.size(); ++k) {
      const int32_t a = draft.output_allocation[k];
      if (a >= 0 && draft.instruction.outputs[k].defined()) result[a] = true;
    }
    for (size_t later = 0; later < draft.freed_before.size(); ++later) {
      for (int32_t a : draft.freed_before[later]) {
        auto& until = allocations[a].until;
        if (until < 0) until = static_cast<int32_t>(later);
      }
    }
    for (size_t a = 0; a < allocations.size(); ++a) {
      auto& allocation = allocations[a];
      if (result[a]) {
        allocation.until = -1;
        continue;
      }
      if (allocation.bytes == 0) continue;
      const int64_t end = allocation.until < 0 ? now + ticks(draft.instruction) - 1
                                               : now + allocation.until;
      add(1, Block{allocation.bytes, now + static_cast<int64_t>(a), end}, &allocation.place);
    }
  }

  Draft& draft_;
  std::vector<Lifetime> lives_;  // by root
  std::vector<int64_t> bytes_;   // by root
  std::vector<int> readers_;     // by root: collectives that read it
  std::vector<int32_t> group_;   // by root: the root whose memory it reuses
  std::vector<int64_t> begin_;   // two per section: its first tick, the tick after its last
  std::vector<int32_t> frames_;  // by stream
  int64_t now_ = 0;
  int32_t first_part_ = -1, last_part_ = -1;  // sections: the first and the last of a part
  std::map<int32_t, PartId> sent_;            // by root: the part whose backward pass sends it
  std::map<std::string, int32_t> named_;      // frames but for the first two and streams'
  std::map<int32_t, PartId> part_frames_;     // parts by frame
  std::map<int32_t, PartId> deferred_;        // deferred_operands
};

}  // namespace

void assign_memory(Draft& draft) { Memory(draft).run(); }

}  // namespace perigee::compile
