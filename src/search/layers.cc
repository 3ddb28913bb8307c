#include "search/layers.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "methods/method.h"
#include "plan/plan.h"

namespace perigee::search {
namespace {

using compile::Binding;
using compile::Frame;
using compile::Instruction;
using compile::Program;
using graph::Phase;
using graph::ValueId;

enum Place { kFirst, kBlock, kLast, kPlaces };

// Which scopes stand before the blocks, which behind.
class Scopes {
 public:
  explicit Scopes(const Folded& folded) : blocks_(folded.kept) {
    bool begun = blocks_.empty();
    for (const auto& node : folded.graph.nodes) {
      if (node.phase != Phase::forward) continue;
      if (in_block(node.scope)) begun = true;
      if (!begun) before_.insert(node.scope);
    }
    for (const auto& input : folded.graph.inputs) {
      const auto dot = input.name.rfind('.');
      const auto scope = dot == std::string::npos ? "" : input.name.substr(0, dot);
      if (input.kind == graph::Input::Kind::parameter && before_.contains(scope)) {
        early_.insert(input.name);
      }
    }
  }

  Place of_scope(const std::string& scope) const {
    if (in_block(scope)) return kBlock;
    return before_.contains(scope) ? kFirst : kLast;
  }
  Place of_parameter(const std::string& name) const {
    if (in_block(name)) return kBlock;
    return early_.contains(name) ? kFirst : kLast;
  }
  // How many blocks the folded graph has.
  double blocks() const { return std::max<double>(1, static_cast<double>(blocks_.size())); }

 private:
  bool in_block(const std::string& scope) const {
    return std::any_of(blocks_.begin(), blocks_.end(),
                       [&](const auto& b) { return graph::contains_scope(b, scope); });
  }

  std::vector<std::string> blocks_;
  std::set<std::string> before_, early_;
};

double bytes_of(const Program& program, ValueId v) {
  return static_cast<double>(program.values[v.index].type.bytes());
}

// Sums over one program, by place.
class Accounts {
 public:
  Accounts(const Program& program, const mesh::Mesh& mesh, const Scopes& scopes, OpCosts& costs)
      : program_(program), mesh_(mesh), scopes_(scopes), costs_(costs) {}

  Layers run() {
    for (const auto& section : program_.sections) {
      for (const auto& instruction : section.instructions) visit(section, instruction);
    }
    save();
    weigh();
    Layers layers;
    const double blocks = scopes_.blocks();
    auto& block = places_[kBlock];
    for (double* value : {&block.forward, &block.backward, &block.communication, &block.weights,
                          &block.gradients, &block.states, &block.saved}) {
      *value /= blocks;
    }
    const double weights =
        places_[kFirst].weights + block.weights * blocks + places_[kLast].weights;
    for (auto& layer : places_) {
      layer.step = weights > 0 ? step_ * layer.weights / weights : 0;
    }
    layers.first = places_[kFirst];
    layers.block = block;
    layers.last = places_[kLast];
    layers.measured = all_measured_;
    double scratch = 0, saved = layers.first.saved + blocks * block.saved + layers.last.saved;
    for (const auto& frame : program_.frames) {
      if (frame.kind != Frame::Kind::persistent) scratch += static_cast<double>(frame.bytes);
    }
    const double gradients =
        layers.first.gradients + blocks * block.gradients + layers.last.gradients;
    layers.working = std::max(block.saved, scratch - saved - gradients);
    layers.crossing = crossing_;
    return layers;
  }

 private:
  void visit(const compile::Section& section, const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::wait) return;
    const bool collective = instruction.kind == Instruction::Kind::collective;
    cost::Time time;
    if (collective) {
      const auto exchange = exchange_of(program_, instruction, mesh_, program_.rank);
      // What data ranks exchange is counted apart: the program's are not as many as the plan's.
      if (exchange.stream.find("data") != std::string::npos) return;
      time = costs_.collective(exchange);
    } else {
      time = costs_.op(program_, instruction, program_.rank);
    }
    all_measured_ = all_measured_ && (time.measured || time.seconds == 0);
    if (section.name == "step") {
      step_ += time.seconds;
      return;
    }
    auto& layer = places_[scopes_.of_scope(instruction.scope)];
    (instruction.phase == Phase::forward ? layer.forward : layer.backward) += time.seconds;
    if (collective) layer.communication += time.seconds;
  }

  ValueId root(ValueId v) const {
    const auto base = program_.values[v.index].view_of;
    return base.defined() ? base : v;
  }

  // Values that forward ops make and backward ops read.
  void save() {
    struct Maker {
      Place place;
      std::string scope;
    };
    std::map<int32_t, Maker> made;
    std::set<int32_t> saved, crossed;
    for (const auto& section : program_.sections) {
      if (section.name == "step") break;
      for (const auto& instruction : section.instructions) {
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        node.each_operand([&](ValueId v) {
          const auto base = root(v);
          const auto found = made.find(base.index);
          if (found == made.end()) return;
          if (instruction.phase == Phase::backward) {
            if (saved.insert(base.index).second) {
              places_[found->second.place].saved += bytes_of(program_, base);
            }
          } else if (found->second.place == kBlock &&
                     block_scope(found->second.scope) != block_scope(instruction.scope) &&
                     crossed.insert(base.index).second) {
            crossing_ += bytes_of(program_, base);
          }
        });
        if (instruction.phase != Phase::forward) continue;
        for (auto v : instruction.outputs) {
          if (!v.defined() || persistent(v)) continue;
          made.try_emplace(root(v).index,
                           Maker{scopes_.of_scope(instruction.scope), instruction.scope});
        }
      }
    }
    // From each block but the last to what follows.
    crossing_ /= scopes_.blocks();
  }

  // "blocks.3.attn" -> "blocks.3"
  static std::string block_scope(const std::string& scope) {
    std::string block;
    for (size_t begin = 0; begin <= scope.size();) {
      const auto end = std::min(scope.find('.', begin), scope.size());
      const auto part = scope.substr(begin, end - begin);
      block += (begin > 0 ? "." : "") + part;
      const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                       [](char c) { return c >= '0' && c <= '9'; });
      if (number) return block;
      begin = end + 1;
    }
    return "";
  }

  bool persistent(ValueId v) const {
    const auto frame = program_.values[v.index].place.frame;
    return frame >= 0 && program_.frames[frame].kind == Frame::Kind::persistent;
  }

  void weigh() {
    for (const auto& binding : program_.bindings) {
      if (binding.kind == Binding::Kind::parameter) {
        auto& layer = places_[scopes_.of_parameter(binding.name)];
        layer.weights += bytes_of(program_, binding.value);
        layer.gradients += bytes_of(program_, binding.value);
      } else if (binding.kind == Binding::Kind::state) {
        const auto colon = binding.name.find(':');
        if (colon == std::string::npos) continue;
        places_[scopes_.of_parameter(binding.name.substr(colon + 1))].states +=
            bytes_of(program_, binding.value);
      }
    }
  }

  const Program& program_;
  const mesh::Mesh& mesh_;
  const Scopes& scopes_;
  OpCosts& costs_;
  Layer places_[kPlaces];
  double step_ = 0, crossing_ = 0;
  bool all_measured_ = true;
};

Layer between(const Layer& a, const Layer& b, double share) {
  Layer made;
  for (const auto field :
       {&Layer::forward, &Layer::backward, &Layer::communication, &Layer::weights,
        &Layer::gradients, &Layer::states, &Layer::saved, &Layer::step}) {
    made.*field = a.*field + (b.*field - a.*field) * share;
  }
  return made;
}

Layers between(const Layers& a, const Layers& b, double share) {
  Layers made;
  made.first = between(a.first, b.first, share);
  made.block = between(a.block, b.block, share);
  made.last = between(a.last, b.last, share);
  made.working = a.working + (b.working - a.working) * share;
  made.crossing = a.crossing + (b.crossing - a.crossing) * share;
  made.measured = a.measured && b.measured;
  return made;
}

}  // namespace

std::string pattern_of(const std::vector<std::string>& blocks) {
  if (blocks.empty()) return "";
  const auto dot = blocks.front().rfind('.');
  return dot == std::string::npos ? "*" : blocks.front().substr(0, dot) + ".*";
}

const Layers* LayerTables::find(const Choice& choice, std::string& why) {
  const auto key = fmt::format("{} {} {} {}", choice.tensor, choice.sequence,
                               choice.checkpoint ? choice.every : 0, choice.micro);
  auto found = tables_.find(key);
  if (found == tables_.end()) found = tables_.emplace(key, look(choice)).first;
  why = found->second.why;
  return why.empty() ? &found->second.layers : nullptr;
}

LayerTables::Entry LayerTables::look(const Choice& choice) {
  Entry entry;
  if (choice.checkpoint && choice.every > 1) {
    auto all = choice, none = choice;
    all.every = 1;
    none.checkpoint = false;
    const auto *a = find(none, entry.why), *b = a ? find(all, entry.why) : nullptr;
    if (!b) return entry;
    entry.layers = between(*a, *b, 1 / static_cast<double>(choice.every));
    // While such a block's backward pass runs, all of it is there again.
    entry.layers.working = std::max(a->working, b->working);
    return entry;
  }
  if (choice.micro != 1 && choice.micro != samples_) {
    auto least = choice, most = choice;
    least.micro = 1;
    most.micro = samples_;
    const auto *a = find(least, entry.why), *b = a ? find(most, entry.why) : nullptr;
    if (!b) return entry;
    const double share = static_cast<double>(choice.micro - 1) / static_cast<double>(samples_ - 1);
    entry.layers = between(*a, *b, share);
    return entry;
  }
  try {
    entry.layers = make(choice);
  } catch (const Error& error) {
    entry.why = error.what();
  }
  return entry;
}

Layers LayerTables::make(const Choice& choice) const {
  // The folded graph has `samples_`: as many data ranks as make that of the microbatch.
  Choice alone;
  alone.tensor = choice.tensor;
  alone.sequence = choice.sequence;
  alone.checkpoint = choice.checkpoint;
  alone.data = samples_ / choice.micro;
  methods::Request request;
  request.graph = &folded_.graph;
  request.global_batch = samples_;
  request.world = alone.tensor * alone.data;
  request.world_given = true;
  auto row = Pins(pins_);
  const auto strategy =
      methods::from_json(strategy_of(alone, row, pattern_of(folded_.blocks)), "auto");
  const auto plan = methods::make_plan(strategy, request);
  plan::verify(plan, folded_.graph);
  auto spec = spec_;
  // Parameters of blocks that were folded away.
  const auto gone = [&](const std::string& name) { return !folded_.graph.find_input(name); };
  std::erase_if(spec.frozen, gone);
  for (auto& group : spec.groups) std::erase_if(group.parameters, gone);
  const auto program = compile::compile(folded_.graph, plan, spec, 0, traces_);
  const Scopes scopes(folded_);
  return Accounts(program, plan.mesh, scopes, costs_).run();
}

}  // namespace perigee::search
