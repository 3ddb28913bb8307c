#include "compile/memory/one_copy.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/defect.h"
#include "compile/draft/draft.h"

namespace perigee::compile {

namespace {

// Instructions are counted over the replay.
struct FrameState {
  // The rank's part: ranges of bytes that it writes, by their begin.
  std::map<int64_t, int64_t> own;
  int64_t read = 0, written = 0;  // the last instruction that read other bytes, or wrote its own
  int64_t agreed = 0;  // the start of the last collective of the frame's ranks that has ended
};

class Replay {
 public:
  explicit Replay(const Program& program) : program_(program) {
    for (size_t f = 0; f < program.frames.size(); ++f) {
      const auto& frame = program.frames[f];
      if (frame.held_by >= 0 && !frame.borrowed) frames_[static_cast<int32_t>(f)];
    }
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::op) continue;
        for (const auto v : instruction.outputs) {
          if (const auto at = frames_.find(frame_of(v)); at != frames_.end()) {
            const auto [begin, end] = bytes_of(v);
            add(at->second.own, begin, end);
          }
        }
      }
    }
  }

  void run() {
    if (frames_.empty()) return;
    for (int step = 0; step < 2; ++step) {
      int repeats = 0;
      for (size_t r = 0; r < program_.order.size(); ++r) {
        const auto section = program_.order[r].section;
        repeats = r > 0 && program_.order[r - 1].section == section ? repeats + 1 : 0;
        if (repeats > 1) continue;  // a third run in a row gives the result of the second
        section_ = &program_.sections[section];
        for (const auto& instruction : section_->instructions) run(instruction);
      }
      for (const auto& [f, state] : frames_) {
        if (state.written < state.agreed || state.written == 0) continue;
        fail_defect("compile",
                    "a step must end with a barrier after the last write to the one copy of its "
                    "ranks, but '{}' has none",
                    program_.frames[f].name);
      }
    }
  }

 private:
  int32_t frame_of(ValueId v) const {
    return v.defined() ? program_.values[v.index].place.frame : -1;
  }

  // A value's bytes in its frame. Parameters and runs of them are contiguous.
  std::pair<int64_t, int64_t> bytes_of(ValueId v) const {
    const auto& value = program_.values[v.index];
    return {value.place.offset, value.place.offset + value.type.bytes()};
  }

  static void add(std::map<int64_t, int64_t>& ranges, int64_t begin, int64_t end) {
    auto at = ranges.upper_bound(begin);
    if (at != ranges.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ranges.erase(at);
    }
    ranges[begin] = end;
  }

  bool is_own(const FrameState& state, ValueId v) const {
    const auto [begin, end] = bytes_of(v);
    const auto at = state.own.upper_bound(begin);
    return at != state.own.begin() && std::prev(at)->second >= end;
  }

  bool includes(const Stream& stream, const Stream& ranks) const {
    return stream.kind == Stream::Kind::group &&
           std::all_of(ranks.axes.begin(), ranks.axes.end(),
                       [&](const auto& axis) { return stream.axes.contains(axis); });
  }

  [[noreturn]] void wrong(const Instruction& instruction, int32_t frame,
                          const std::string& rule) const {
    fail_defect("compile", "{}, but {} in '{}' does not keep to it in '{}'", rule, instruction.op,
                section_->name(), program_.frames[frame].name);
  }

  void run(const Instruction& instruction) {
    ++now_;
    if (instruction.kind == Instruction::Kind::wait) return end(instruction.event);
    const bool moves = instruction.kind == Instruction::Kind::collective;
    if (moves && !is_copy(instruction.op) && instruction.op != "comm::broadcast") {
      started_[instruction.event] = {now_, instruction.stream};
    }
    if (moves && instruction.op == "comm::barrier") return;
    const auto& outputs = instruction.outputs;
    for (const auto v : outputs) write(instruction, v, moves);
    each_read(instruction, [&](ValueId v) {
      const auto at = frames_.find(frame_of(v));
      if (at == frames_.end()) return;
      auto& state = at->second;
      const bool sent = moves && !is_copy(instruction.op);  // other ranks read it, too
      if (is_own(state, v) && !sent) return;                // no other rank writes it
      if (!is_own(state, v) && state.written > state.agreed) {
        wrong(instruction, at->first, "ranks read their one copy after a barrier");
      }
      state.read = now_;
      if (sent) sending_[instruction.event].insert(at->first);
    });
  }

  void write(const Instruction& instruction, ValueId v, bool moves) {
    const auto at = frames_.find(frame_of(v));
    if (at == frames_.end()) return;
    auto& state = at->second;
    if (moves || !instruction.in_place) {
      wrong(instruction, at->first, "ops write the one copy of several ranks in place");
    }
    const bool sent = std::ranges::any_of(
        sending_, [&](const auto& open) { return open.second.contains(at->first); });
    if (sent || state.read > state.agreed) {
      wrong(instruction, at->first, "ranks write their one copy after all have read it");
    }
    state.written = now_;
  }

  void end(int32_t event) {
    if (const auto sent = sending_.find(event); sent != sending_.end()) {
      for (const auto f : sent->second) frames_[f].read = now_;
      sending_.erase(sent);
    }
    const auto at = started_.find(event);
    if (at == started_.end()) return;
    const auto [start, stream] = at->second;
    started_.erase(at);
    for (auto& [f, state] : frames_) {
      if (!includes(program_.streams[stream], program_.streams[program_.frames[f].held_by])) {
        continue;
      }
      state.agreed = std::max(state.agreed, start);
    }
  }

  const Program& program_;
  std::map<int32_t, FrameState> frames_;
  std::map<int32_t, std::pair<int64_t, int32_t>> started_;  // by event: when, and its stream
  std::map<int32_t, std::set<int32_t>> sending_;  // by event: the frames that its collective reads
  const Section* section_ = nullptr;
  int64_t now_ = 0;
};

}  // namespace

void verify_one_copies(const Program& program) { Replay(program).run(); }

}  // namespace perigee::compile
