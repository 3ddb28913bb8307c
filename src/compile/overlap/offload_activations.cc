// Saved activations in host memory until the backward pass.
#include "compile/overlap/offload_activations.h"

#include <algorithm>
#include <map>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

namespace {

using Instructions = std::vector<DraftInstruction>;

// The position of an instruction.
struct At {
  size_t section = 0, index = 0;
  auto operator<=>(const At&) const = default;
};

class Activations {
 public:
  Activations(Draft& draft, const plan::Offload& offload) : draft_(draft), offload_(offload) {}

  void run() {
    find_scopes();
    find_values();
    before_.resize(draft_.sections.size());
    for (size_t s = 0; s < before_.size(); ++s) {
      before_[s].resize(draft_.sections[s].instructions.size() + 1);
    }
    store_all();
    fetch_all();
    for (size_t s = 0; s < before_.size(); ++s) {
      auto& list = draft_.sections[s].instructions;
      Instructions out;
      for (size_t i = 0; i <= list.size(); ++i) {
        for (auto& copy : before_[s][i]) out.push_back(std::move(copy));
        if (i < list.size()) out.push_back(std::move(list[i]));
      }
      list = std::move(out);
    }
  }

 private:
  // A scope's forward ops in a section: instructions [first, last].
  struct Span {
    size_t scope = 0, first = 0, last = 0;
  };
  struct Value {
    size_t scope = 0;
    At made;
    int makers = 0;
    std::vector<At> reads;  // in the backward pass
    ValueId host;
  };

  bool repeats(size_t s) const {
    const auto& section = draft_.sections[s];
    return section.repeats && !section.role.is_prologue();
  }

  int scope_of(const Instruction& instruction) const {
    for (size_t a = 0; a < offload_.activations.size(); ++a) {
      if (graph::contains_scope(offload_.activations[a], instruction.scope)) {
        return static_cast<int>(a);
      }
    }
    return -1;
  }

  // Finds the start of each section's backward pass, and the spans of the scopes before it.
  void find_scopes() {
    for (size_t s = 0; s < draft_.sections.size(); ++s) {
      const auto& section = draft_.sections[s];
      const auto& list = section.instructions;
      const bool forward = !section.role.part.defined() ||
                           section.role.kind == SectionKind::forward;
      size_t border = forward ? list.size() : 0;
      std::map<size_t, Span> spans;
      for (size_t i = 0; i < border; ++i) {
        if (list[i].instruction.phase == graph::Phase::backward) {
          border = i;
          break;
        }
        const int scope = scope_of(list[i].instruction);
        if (scope < 0) continue;
        const auto key = static_cast<size_t>(scope);
        spans.try_emplace(key, Span{key, i, i}).first->second.last = i;
      }
      border_.push_back(border);
      auto& ordered = spans_.emplace_back();
      for (const auto& [scope, span] : spans) ordered.push_back(span);
      std::sort(ordered.begin(), ordered.end(),
                [](const Span& a, const Span& b) { return a.first < b.first; });
    }
  }

  // Finds the values that one op of a scope makes and the backward pass reads.
  void find_values() {
    std::map<int32_t, Value> found;  // by root
    for (size_t s = 0; s < draft_.sections.size(); ++s) {
      const auto& list = draft_.sections[s].instructions;
      for (size_t i = 0; i < list.size(); ++i) {
        const auto& instruction = list[i].instruction;
        const bool backward = i >= border_[s];
        each_operand(instruction, [&](ValueId v) {
          const auto known = found.find(draft_.root(v).index);
          if (known != found.end() && backward) known->second.reads.push_back({s, i});
        });
        for (auto v : instruction.outputs) {
          if (!v.defined()) continue;
          const auto root = draft_.root(v);
          const auto& home = draft_.homes[root.index];
          const bool lives = home.kind == Home::Kind::scratch && !home.outlives && !home.host;
          const int scope = scope_of(instruction);
          if (const auto known = found.find(root.index); known != found.end()) {
            if (known->second.made != At{s, i}) ++known->second.makers;
          } else if (lives && repeats(s) && !backward && scope >= 0 && !instruction.in_place &&
                     instruction.kind == Instruction::Kind::op && list[i].when == kAlways &&
                     draft_.value(root).type.numel() > 0) {
            found[root.index] = {static_cast<size_t>(scope), {s, i}, 1, {}, {}};
          }
        }
      }
    }
    std::erase_if(found, [](const auto& entry) {
      return entry.second.makers != 1 || entry.second.reads.empty();
    });
    values_ = std::move(found);
  }

  // Stores each value after the op that makes it; its memory is free after the next scope's ops.
  void store_all() {
    for (auto& [root, value] : values_) {
      const auto [s, i] = value.made;
      const ValueId v{root};
      const ProgramValue like = draft_.value(v);
      value.host = draft_.add(like.type, like.name, Home{.host = true}, like.strides);
      auto store = copy_bytes(draft_, v, value.host, true);
      describe(store, s, i);
      const auto& spans = spans_[s];
      const auto own = std::find_if(spans.begin(), spans.end(),
                                    [&](const Span& span) { return span.scope == value.scope; });
      size_t until = border_[s];
      if (own != spans.end()) {
        // The last scope's copies end after as many further ops as the scope has.
        const size_t last = std::next(own) != spans.end() ? std::next(own)->last
                                                          : 2 * own->last - own->first;
        until = std::min(until, std::max(last, i) + 1);
      }
      waits_[{s, until}].push_back(store.instruction.event);
      before_[s][i + 1].push_back(std::move(store));
    }
    for (const auto& [at, events] : waits_) {
      for (int32_t event : events) before_[at.section][at.index].push_back(wait_for(event));
    }
  }

  // Fetches a value in each section of the backward pass that reads it: before the first op that
  // reads a value of its scope, or of the scope `prefetch` scopes ahead.
  void fetch_all() {
    for (size_t s = 0; s < draft_.sections.size(); ++s) {
      std::map<size_t, size_t> first;  // by scope
      for (const auto& [root, value] : values_) {
        for (const auto& read : value.reads) {
          if (read.section != s) continue;
          const auto [at, added] = first.try_emplace(value.scope, read.index);
          at->second = std::min(at->second, read.index);
        }
      }
      std::vector<std::pair<size_t, size_t>> order;  // first needed, scope
      for (const auto& [scope, index] : first) order.emplace_back(index, scope);
      std::sort(order.begin(), order.end());
      for (size_t k = 0; k < order.size(); ++k) {
        const auto ahead = static_cast<size_t>(
            std::min<int64_t>(static_cast<int64_t>(k), offload_.prefetch));
        fetch_scope(s, order[k].second, order[k - ahead].first);
      }
    }
  }

  void fetch_scope(size_t s, size_t scope, size_t before) {
    auto& list = draft_.sections[s].instructions;
    // In the order in which values are needed.
    std::vector<std::pair<size_t, int32_t>> needed;
    for (const auto& [root, value] : values_) {
      if (value.scope != scope) continue;
      for (const auto& read : value.reads) {
        if (read.section != s) continue;
        needed.emplace_back(read.index, root);
        break;
      }
    }
    std::sort(needed.begin(), needed.end());
    for (const auto& [index, root] : needed) {
      const auto& value = values_.at(root);
      const ProgramValue like = draft_.value({root});
      const ValueId back = draft_.add(like.type, like.name, {}, like.strides);
      auto fetch = copy_bytes(draft_, value.host, back, false);
      describe(fetch, s, index);
      before_[s][before].push_back(std::move(fetch));
      std::map<int32_t, ValueId> views;
      for (const auto& read : value.reads) {
        if (read.section != s) continue;
        auto& instruction = list[read.index].instruction;
        for (auto& [name, arg] : instruction.args) {
          if (auto* v = std::get_if<ValueId>(&arg)) {
            move(*v, root, back, views);
          } else if (auto* many = std::get_if<std::vector<ValueId>>(&arg)) {
            for (auto& v : *many) move(v, root, back, views);
          }
        }
        for (auto& v : instruction.outputs) move(v, root, back, views);
      }
    }
  }

  // Replaces a view of the root by the same view of the fetched value.
  void move(ValueId& v, int32_t root, ValueId back, std::map<int32_t, ValueId>& views) {
    if (!v.defined() || draft_.root(v).index != root) return;
    if (v.index == root) {
      v = back;
      return;
    }
    auto& view = views[v.index];
    if (!view.defined()) {
      const ProgramValue like = draft_.value(v);
      view = draft_.add_view(back, draft_.view_offset[v.index], like.type, like.strides, like.name);
    }
    v = view;
  }

  void describe(DraftInstruction& copy, size_t s, size_t i) const {
    const auto& like = draft_.sections[s].instructions[i].instruction;
    copy.instruction.scope = like.scope;
    copy.instruction.phase = like.phase;
  }

  Draft& draft_;
  const plan::Offload& offload_;
  std::vector<size_t> border_;            // by section: where its backward pass begins
  std::vector<std::vector<Span>> spans_;  // by section, in the order in which they run
  std::map<int32_t, Value> values_;       // by root
  std::map<At, std::vector<int32_t>> waits_;
  std::vector<std::vector<Instructions>>
      before_;  // by section and index: instructions to insert before it
};

}  // namespace

void offload_activations(Draft& draft, const plan::Offload& offload) {
  if (!offload.activations.empty()) Activations(draft, offload).run();
}

}  // namespace perigee::compile
