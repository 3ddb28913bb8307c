// A replay of the step, independent of the passes that chose the addresses: every byte has an
// owner, and every operand must be written before it is read.
#include <algorithm>
#include <map>
#include <set>

#include "base/defect.h"
#include "compile/draft/draft.h"
#include "compile/draft/layout.h"
#include "compile/events.h"
#include "compile/memory/one_copy.h"
#include "compile/memory/pack.h"
#include "compile/program.h"
#include "graph/ops.h"

namespace perigee::compile {

namespace {

// A range of memory: a copy of a frame, and the bytes in it.
struct Piece {
  int32_t frame = -1;
  int32_t copy = 0;
  int64_t begin = 0, end = 0;
  bool empty() const { return frame < 0 || begin == end; }
  bool overlaps(const Piece& other) const {
    return !empty() && !other.empty() && frame == other.frame && copy == other.copy &&
           begin < other.end && other.begin < end;
  }
  bool operator==(const Piece&) const = default;
};

// Intervals of bytes, disjoint and merged.
class Bytes {
 public:
  void add(int64_t begin, int64_t end) {
    auto at = parts_.upper_bound(begin);
    if (at != parts_.begin() && std::prev(at)->second >= begin) --at;
    while (at != parts_.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = parts_.erase(at);
    }
    parts_[begin] = end;
  }
  bool has(int64_t begin, int64_t end) const {
    auto at = parts_.upper_bound(begin);
    return at != parts_.begin() && std::prev(at)->second >= end;
  }

 private:
  std::map<int64_t, int64_t> parts_;
};

class Replay {
 public:
  explicit Replay(const Program& program)
      : program_(program),
        once_(started_once(program)),
        live_(program.values.size()),
        written_(program.values.size()) {
    for (size_t v = 0; v < live_.size(); ++v) {
      const auto frame = program.values[v].place.frame;
      const auto copies = frame < 0 || static_cast<size_t>(frame) >= program.frames.size()
                              ? 1
                              : static_cast<size_t>(program.frames[frame].copies);
      live_[v].resize(copies);
      written_[v].resize(copies);
    }
  }

  void run() {
    check_values();
    for (const auto& binding : program_.bindings) {
      if (binding.kind == Binding::Kind::result && binding.value.defined()) {
        bound_.insert(root(binding.value));
      }
    }
    // The roots that each run reads, to find values that are never read.
    std::vector<std::set<int32_t>> reads(program_.sections.size());
    for (size_t s = 0; s < program_.sections.size(); ++s) {
      for (const auto& instruction : program_.sections[s].instructions) {
        each_read(instruction, [&](ValueId v) { reads[s].insert(root(v)); });
      }
    }
    int32_t repeats = 0;
    for (size_t r = 0; r < program_.order.size(); ++r) {
      const auto& run = program_.order[r];
      const bool same = r > 0 && program_.order[r - 1].section == run.section &&
                        program_.order[r - 1].slot == run.slot;
      repeats = same ? repeats + 1 : 0;
      if (repeats > 1) continue;  // a third consecutive run gives the result of the second
      section_ = &program_.sections.at(run.section);
      slot_ = run.slot;
      made_.clear();
      for (index_ = 0; index_ < section_->instructions.size(); ++index_) {
        step(section_->instructions[index_]);
      }
      for (int32_t v : made_) {
        if (!live(v).has_value() || bound_.contains(v)) continue;
        bool read = std::any_of(flights_.begin(), flights_.end(), [&](const auto& flight) {
          return uses(flight.second.reads, v) || uses(flight.second.writes, v);
        });
        for (size_t later = r + 1; later < program_.order.size() && !read; ++later) {
          read = reads[program_.order[later].section].contains(v);
        }
        if (!read) {
          fail_defect(
              "compile",
              "a section must release values that nothing reads later, but '{}' leaves '{}'",
              section_->name(), program_.values[v].name.text);
        }
      }
    }
    for (const auto& [event, flight] : flights_) {
      if (flight.sent) continue;
      fail_defect("compile",
                  "every collective must be waited for within the step, but event {} is not",
                  event.first);
    }
  }

 private:
  // Memory that a collective uses: a root, the copy of its frame, and the bytes.
  struct Use {
    int32_t root = -1;
    size_t copy = 0;
    Piece piece;
  };
  struct Flight {
    std::vector<Use> reads, writes;
    bool sent = false;  // to another stage: the step's end waits for it
  };
  using Event = std::pair<int32_t, int32_t>;  // event, copy of its section's frame

  Event event_of(const Instruction& instruction) const {
    const auto copy = program_.copy_of(slot_, section_->frame);
    return {instruction.event, once_[instruction.event] ? 0 : copy};
  }
  bool uses(const std::vector<Use>& list, int32_t root) const {
    return std::any_of(list.begin(), list.end(),
                       [&](const Use& use) { return use.root == root && use.copy == copy(root); });
  }
  // Returns the copy of the root's frame that the run uses.
  size_t copy(int32_t root) const {
    const auto frame = program_.values[root].place.frame;
    if (frame < 0 || program_.frames[frame].copies == 1) return 0;
    return static_cast<size_t>(program_.copy_of(slot_, frame));
  }
  std::optional<Piece>& live(int32_t root) { return live_[root][copy(root)]; }
  const std::optional<Piece>& live(int32_t root) const { return live_[root][copy(root)]; }
  Bytes& written(int32_t root) { return written_[root][copy(root)]; }

  [[noreturn]] void wrong(const Instruction& instruction, const std::string& what) const {
    fail_defect("compile", "{}, in '{}' at instruction {} ({}{}{})", what, section_->name(), index_,
                instruction.op.empty() ? "wait" : instruction.op,
                instruction.scope.empty() ? "" : ", scope ", instruction.scope);
  }

  int32_t root(ValueId v) const {
    const auto base = program_.values[v.index].view_of;
    return base.defined() ? base.index : v.index;
  }

  Piece piece(const Address& place, int64_t bytes) const {
    if (place.frame < 0 || bytes == 0) return {};
    return {place.frame, program_.copy_of(slot_, place.frame), place.offset, place.offset + bytes};
  }

  int64_t bytes_of(const ProgramValue& value) const {
    return extent(value.type.shape, value.strides) *
           static_cast<int64_t>(graph::size_of(value.type.dtype));
  }

  Piece piece(ValueId v) const {
    const auto& value = program_.values[v.index];
    return piece(value.place, bytes_of(value));
  }

  bool persistent(int32_t root) const {
    const auto& place = program_.values[root].place;
    return place.frame >= 0 && program_.frames[place.frame].kind == Frame::Kind::persistent;
  }

  void check_place(const Address& place, int64_t bytes, bool aligned,
                   const std::string& name) const {
    if (bytes == 0) return;
    if (place.frame < 0 || static_cast<size_t>(place.frame) >= program_.frames.size()) {
      fail_defect("compile", "a value must lie in a frame, but '{}' lies in none", name);
    }
    const auto& frame = program_.frames[place.frame];
    if (place.offset < 0 || place.offset + bytes > frame.bytes) {
      fail_defect(
          "compile",
          "a value must lie within its frame, but '{}' lies at {} to {} of {} bytes in '{}'", name,
          place.offset, place.offset + bytes, frame.bytes, frame.name);
    }
    if (aligned && place.offset % kAlignment != 0) {
      fail_defect("compile", "an address must be a multiple of {}, but '{}' has {}", kAlignment,
                  name, place.offset);
    }
  }

  void check_values() {
    std::map<std::pair<int32_t, int64_t>, std::pair<int64_t, int32_t>> kept;  // persistent
    for (size_t v = 0; v < program_.values.size(); ++v) {
      const auto& value = program_.values[v];
      const auto bytes = bytes_of(value);
      const bool used = value.place.frame >= 0;
      if (value.view_of.defined()) {
        const auto& base = program_.values[value.view_of.index];
        const auto outer = piece(base.place, bytes_of(base)), inner = piece(value.place, bytes);
        if (!inner.empty() &&
            (inner.frame != outer.frame || inner.begin < outer.begin || inner.end > outer.end)) {
          fail_defect("compile", "a view must lie within its base, but '{}' does not",
                      value.name.text);
        }
      } else if (used) {
        check_place(value.place, bytes, true, value.name.text);
        if (!persistent(static_cast<int32_t>(v)) || bytes == 0) continue;
        kept[{value.place.frame, value.place.offset}] = {value.place.offset + bytes,
                                                         static_cast<int32_t>(v)};
      }
    }
    for (auto at = kept.begin(); at != kept.end() && std::next(at) != kept.end(); ++at) {
      const auto& [place, rest] = *std::next(at);
      if (place.first == at->first.first && place.second < at->second.first) {
        fail_defect("compile", "persistent values must not overlap, but '{}' and '{}' do",
                    program_.values[at->second.second].name.text,
                    program_.values[rest.second].name.text);
      }
    }
  }

  // The live values of a copy of a frame, by their first byte.
  using Claims = std::map<int64_t, int32_t>;
  Claims& claims(const Piece& piece) { return claims_[{piece.frame, piece.copy}]; }

  // Returns a live root that overlaps the piece, or -1.
  int32_t overlapping(const Piece& piece) {
    if (piece.empty()) return -1;
    auto& live = claims(piece);
    auto at = live.lower_bound(piece.end);
    if (at == live.begin()) return -1;
    --at;
    return live_[at->second][piece.copy]->overlaps(piece) ? at->second : -1;
  }

  void read(const Instruction& instruction, ValueId v) {
    const int32_t r = root(v);
    const auto piece = this->piece(v);
    if (piece.empty() || persistent(r)) return in_flight(instruction, v, false);
    if (!live(r).has_value() || !written(r).has(piece.begin, piece.end)) {
      wrong(instruction, fmt::format("a value must be written before it is read, but '{}' is not",
                                     program_.values[v.index].name.text));
    }
    in_flight(instruction, v, false);
  }

  void in_flight(const Instruction& instruction, ValueId v, bool write) const {
    const int32_t r = root(v);
    const auto wanted = piece(v);
    for (const auto& [event, flight] : flights_) {
      auto has = [&](const auto& list) {
        return std::any_of(list.begin(), list.end(), [&](const Use& use) {
          return use.root == r && use.copy == copy(r) && use.piece.overlaps(wanted);
        });
      };
      if (has(flight.writes) || (write && has(flight.reads))) {
        wrong(
            instruction,
            fmt::format("a collective must be waited for before its tensors are used, but '{}' is "
                        "used while event {} is open",
                        program_.values[r].name.text, event.first));
      }
    }
  }

  void release(const Instruction& instruction, int32_t r) {
    if (!live(r).has_value()) {
      if (piece(ValueId{r}).empty()) return;
      wrong(instruction, fmt::format("only a live value can be released, but '{}' is not",
                                     program_.values[r].name.text));
    }
    for (const auto& [event, flight] : flights_) {
      for (const auto* list : {&flight.reads, &flight.writes}) {
        if (uses(*list, r)) {
          wrong(instruction,
                fmt::format("a collective's tensors are in use until it is waited for, "
                            "but '{}' is released while event {} is open",
                            program_.values[r].name.text, event.first));
        }
      }
    }
    auto& claimed = claims(*live(r));
    const auto at = claimed.find(live(r)->begin);
    if (at != claimed.end() && at->second == r) claimed.erase(at);
    live(r).reset();
    written(r) = {};
  }

  void claim(const Instruction& instruction, int32_t r, const Piece& whole) {
    if (const int32_t other = overlapping(whole); other >= 0) {
      wrong(instruction,
            fmt::format("memory must be free before it is written, but '{}' is to lie "
                        "where '{}' is still in use",
                        program_.values[r].name.text, program_.values[other].name.text));
    }
    live(r) = whole;
    claims(whole)[whole.begin] = r;
    made_.push_back(r);
  }

  void write(const Instruction& instruction, ValueId v) {
    const int32_t r = root(v);
    in_flight(instruction, v, true);
    const auto part = piece(v);
    if (part.empty() || persistent(r)) return;
    if (!live(r).has_value()) claim(instruction, r, piece(ValueId{r}));
    written(r).add(part.begin, part.end);
  }

  // Returns the operand whose memory the result may reuse, since the op reads each element before
  // it writes the result's.
  int32_t taken(const Instruction& instruction, ValueId out) const {
    const bool elementwise = graph::is_pointwise(instruction.op) ||
                             graph::writes_in_place(instruction.op) ||
                             instruction.op == "comm::all_reduce";
    if (!elementwise || out != instruction.outputs[0]) return -1;
    const auto& result = program_.values[out.index];
    int32_t found = -1;
    bool clean = true;
    each_operand(instruction, [&](ValueId v) {
      const auto& value = program_.values[v.index];
      if (!piece(v).overlaps(piece(out))) return;
      const bool same = value.place == result.place && value.strides == result.strides &&
                        value.type == result.type;
      clean = clean && same;
      found = root(v);
    });
    const auto& releases = instruction.releases;
    const bool dies = std::find(releases.begin(), releases.end(), ValueId{found}) != releases.end();
    return clean && dies ? found : -1;
  }

  void step(const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::wait) {
      // Outside of parts: in whichever run it was started.
      const bool ended = section_->frame >= 0 ? flights_.erase(event_of(instruction)) > 0
                                              : std::erase_if(flights_, [&](const auto& flight) {
                                                  return flight.first.first == instruction.event;
                                                }) > 0;
      if (!ended) {
        if (section_->frame >= 0) return;  // nothing had this copy before
        wrong(instruction,
              fmt::format("a wait needs a collective that has started, but event {} is "
                          "not open",
                          instruction.event));
      }
    }
    check_host(instruction);
    each_read(instruction, [&](ValueId v) { read(instruction, v); });
    std::vector<int32_t> replaced;
    for (auto v : instruction.outputs) {
      if (!v.defined()) continue;
      if (!instruction.in_place) {
        const int32_t operand = taken(instruction, v);
        if (operand >= 0 && live(operand).has_value()) {
          // The result replaces the operand.
          claims(*live(operand)).erase(live(operand)->begin);
          live(operand).reset();
          written(operand) = {};
          replaced.push_back(operand);
        }
      }
      write(instruction, v);
    }
    check_temporaries(instruction);
    if (instruction.kind == Instruction::Kind::collective) {
      Flight flight{.sent = instruction.op == "comm::send"};
      each_operand(instruction, [&](ValueId v) {
        const int32_t r = root(v);
        if (std::find(replaced.begin(), replaced.end(), r) == replaced.end())
          flight.reads.push_back({r, copy(r), piece(v)});
      });
      for (auto v : instruction.outputs) {
        flight.writes.push_back({root(v), copy(root(v)), piece(v)});
      }
      if (!flights_.emplace(event_of(instruction), std::move(flight)).second) {
        wrong(instruction,
              fmt::format("an event must be waited for before it is used again, but {} "
                          "is open",
                          instruction.event));
      }
    }
    for (auto v : instruction.releases) {
      if (std::find(replaced.begin(), replaced.end(), v.index) == replaced.end()) {
        release(instruction, v.index);
      }
    }
  }

  // Checks that only copies between host and device use the host's memory.
  void check_host(const Instruction& instruction) const {
    const auto on_host = [&](ValueId v) {
      const auto frame = program_.values[v.index].place.frame;
      return frame >= 0 && program_.frames[frame].host;
    };
    const bool store = instruction.op == "host::store", fetch = instruction.op == "host::fetch";
    const auto check = [&](ValueId v, bool wanted) {
      if (!v.defined() || piece(v).empty() || on_host(v) == wanted) return;
      wrong(instruction,
            fmt::format("only copies between host and device use host memory, but '{}' is {}",
                        program_.values[v.index].name.text, wanted ? "elsewhere" : "there"));
    };
    each_operand(instruction, [&](ValueId v) { check(v, fetch); });
    for (auto v : instruction.outputs) check(v, store);
  }

  // Checks that a call's temporaries overlap no live value, and each other only after they
  // are freed.
  void check_temporaries(const Instruction& instruction) {
    std::vector<std::pair<Piece, size_t>> pieces;
    for (size_t a = 0; a < instruction.allocations.size(); ++a) {
      const auto& allocation = instruction.allocations[a];
      const Piece now = piece(allocation.place, allocation.bytes);
      if (now.empty()) continue;
      bool result = false;
      for (auto v : instruction.outputs) {
        result = result || (v.defined() && program_.values[v.index].place == allocation.place);
      }
      check_place(allocation.place, allocation.bytes, !result, instruction.op);
      for (const auto& [other, index] : pieces) {
        const int32_t until = instruction.allocations[index].until;
        if (other.overlaps(now) && (until < 0 || until > static_cast<int32_t>(a))) {
          wrong(instruction,
                "an op's allocations must not overlap while both are in use, but they do");
        }
      }
      pieces.emplace_back(now, a);
      if (result) continue;
      int32_t live = overlapping(now);
      // A temporary that is freed before a result is allocated may have the result's address.
      if (live >= 0 && allocation.until >= 0) {
        for (size_t k = 0; k < instruction.outputs.size(); ++k) {
          const auto v = instruction.outputs[k];
          if (!v.defined() || root(v) != live) continue;
          for (size_t later = allocation.until; later < instruction.allocations.size(); ++later) {
            if (instruction.allocations[later].place == program_.values[v.index].place) live = -1;
          }
        }
      }
      if (live >= 0) {
        wrong(instruction,
              fmt::format("an op's temporary memory must be free, but '{}' is in use there",
                          program_.values[live].name.text));
      }
    }
  }

  const Program& program_;
  const std::vector<bool> once_;                         // by event
  std::vector<std::vector<std::optional<Piece>>> live_;  // by root, by copy of its frame
  std::vector<std::vector<Bytes>> written_;              // the same
  std::map<std::pair<int32_t, int32_t>, Claims> claims_;
  std::map<Event, Flight> flights_;
  std::set<int32_t> bound_;
  std::vector<int32_t> made_;
  const Section* section_ = nullptr;
  size_t index_ = 0;
  int32_t slot_ = 0;
};

}  // namespace

void verify(const Program& program) {
  Replay(program).run();
  verify_one_copies(program);
}

}  // namespace perigee::compile
