#include "search/layers/accounts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/ops.h"
#include "search/layers/buckets.h"
#include "search/layers/instruction_places.h"
#include "search/layers/scopes.h"

namespace perigee::search {
namespace {

using compile::Binding;
using compile::Frame;
using compile::Instruction;
using compile::Program;
using compile::SectionKind;
using compile::ValueRole;
using graph::Phase;
using graph::ValueId;

double bytes_of(const Program& program, ValueId v) {
  return static_cast<double>(program.values[v.index].type.bytes());
}

// Sums over one program, by place.
class Accounts {
 public:
  Accounts(const Program& program, const plan::Plan& plan, const graph::Graph& graph,
           const LayerScopes& scopes, simulate::OpCosts& costs, const AccountOptions& options)
      : program_(program),
        plan_(plan),
        graph_(graph),
        scopes_(scopes),
        placed_(program, scopes),
        costs_(costs),
        options_(options) {}

  Layers run() {
    weigh();
    find_reads();
    find_sums();
    for (const auto& section : program_.sections) {
      for (const auto& instruction : section.instructions) visit(section, instruction);
    }
    save();
    keep_operands();
    cut_by_size();
    Layers layers;
    const double blocks = scopes_.blocks();
    auto& block = places_[kBlock];
    for (const auto& [scope, seconds] : tail_) {
      places_[scopes_.of_scope(scope).place].tail += seconds;
    }
    for (const auto field : kSums) block.*field /= blocks;
    for (auto& flat : block.flats) {
      for (double* value :
           {&flat.gathered, &flat.weights, &flat.gradients, &flat.summed, &flat.pieces}) {
        *value /= blocks;
      }
    }
    const double weights = places_[kPrologue].weights + block.weights * blocks +
                           places_[kEpilogue].weights;
    for (auto& layer : places_) {
      const double share = weights > 0 ? layer.weights / weights : 0;
      layer.step = share * step_;
      layer.norm = share * norm_;
    }
    layers.prologue = places_[kPrologue];
    layers.block = block;
    layers.epilogue = places_[kEpilogue];
    layers.measured = all_measured_;
    layers.tied = tied_;
    layers.masters = plan_.precision.parameters == plan::Precision::Parameters::masters &&
                     plan_.precision.dtype && plan_.precision.scopes.empty();
    double scratch = 0,
           saved = layers.prologue.saved + blocks * block.saved + layers.epilogue.saved;
    for (const auto& frame : program_.frames) {
      if (frame.kind != Frame::Kind::persistent) scratch += static_cast<double>(frame.bytes);
    }
    const double gradients = layers.prologue.gradients + blocks * block.gradients +
                             layers.epilogue.gradients;
    layers.working = std::max(block.saved - block.low, scratch - saved - gradients);
    layers.crossing = crossing_;
    layers.entering = entering_;
    return layers;
  }

 private:
  void visit(const compile::Section& section, const Instruction& instruction) {
    if (instruction.kind == Instruction::Kind::wait) return;
    const bool collective = instruction.kind == Instruction::Kind::collective;
    cost::Time time;
    if (collective) {
      const auto exchange = simulate::exchange_of(program_, instruction, plan_.mesh, program_.rank);
      // Exchange between data ranks and reductions of gradients are priced separately: the program
      // has fewer ranks than the plan.
      if (exchange.stream.axes.contains("data") || moves_gradients(instruction)) return;
      time = costs_.collective(exchange);
    } else {
      time = costs_.op(program_, instruction, options_.rank);
    }
    all_measured_ = all_measured_ && (time.measured || time.seconds == 0);
    if (section.role.kind == SectionKind::step) {
      // The ranks of the norm's all-reduce depend on axes that the program lacks (exchange.h).
      if (collective && adds_norm(instruction)) return;
      step_ += time.seconds;
      // An optimizer step that runs bucket by bucket does not wait for the norm.
      if (instruction.op == "perigee::clip_scale" && !plan_.overlap.step) norm_ = step_;
      return;
    }
    const auto& [place, block] = placed_.where(instruction);
    auto& layer = places_[place];
    const bool forward = instruction.phase == Phase::forward;
    (forward ? layer.forward : layer.backward) += time.seconds;
    if (collective) {
      layer.communication += time.seconds;
      if (forward) layer.forward_communication += time.seconds;
    } else if (casts_weight(instruction)) {
      (forward ? layer.forward_cast : layer.backward_cast) += time.seconds;
    }
    if (forward) return;
    note_ready(instruction, time.seconds);
    const bool gradient = placed_.is_weight_gradient(instruction);
    if (gradient) layer.gradient += time.seconds;
    if (block.empty()) return;
    auto& tail = tail_[block];
    tail = gradient && graph::is_product(instruction.op) ? 0 : tail + time.seconds;
  }

  // A gradient is ready when its last op has run, as in a program that reduces each one.
  void note_ready(const Instruction& instruction, double seconds) {
    double ready = places_[placed_.where(instruction).place].backward;
    if (placed_.is_weight_gradient(instruction)) {
      const graph::Node node{.op = instruction.op, .args = instruction.args};
      double begin = 0;
      node.each_operand([&](ValueId v) {
        const auto made = ready_.find(root_of(program_, v).index);
        if (made != ready_.end()) begin = std::max(begin, made->second);
      });
      ready = std::min(ready, begin + seconds);
    }
    for (auto v : instruction.outputs) {
      if (!v.defined()) continue;
      ready_[root_of(program_, v).index] = ready;
      if (!is_gradient(v)) continue;
      const auto found = index_.find(name_of(v).subject);
      if (found != index_.end()) held_[found->second].of.ready = ready;
    }
  }

  const compile::ValueName& name_of(ValueId v) const { return program_.values[v.index].name; }

  bool is_gradient(ValueId v) const { return name_of(v).role == ValueRole::gradient; }

  bool moves_gradients(const Instruction& instruction) const {
    bool moves = false;
    const graph::Node node{.op = instruction.op, .args = instruction.args};
    node.each_operand([&](ValueId v) {
      moves = moves || is_gradient(v) || name_of(v).role == ValueRole::flat_gradients;
    });
    return moves;
  }

  bool adds_norm(const Instruction& instruction) const {
    const graph::Node node{.op = instruction.op, .args = instruction.args};
    return name_of(node.get<ValueId>("self", {})).role == ValueRole::squared_norm;
  }

  bool casts_weight(const Instruction& instruction) const {
    if (instruction.op != "perigee::cast") return false;
    const graph::Node node{.op = instruction.op, .args = instruction.args};
    return parameter_of(node.get<ValueId>("self", {})) >= 0;
  }

  // Returns the parameter that the value is or views: an index into held_, or -1. Several
  // parameters may be stored in one flat value.
  int parameter_of(ValueId v) const {
    const auto& place = program_.values[v.index].place;
    auto found = parameters_.upper_bound({place.frame, place.offset});
    if (found == parameters_.begin()) return -1;
    --found;
    const auto& [frame, offset] = found->first;
    const auto& [bytes, index] = found->second;
    return frame == place.frame && place.offset < offset + bytes ? index : -1;
  }

  // Finds the passes that read each parameter, and the parameters of the prologue that the
  // epilogue reads.
  void find_reads() {
    std::unordered_map<int32_t, int> casts;  // of parameters, by value
    for (const auto& section : program_.sections) {
      if (section.role.kind == SectionKind::step) break;
      for (const auto& instruction : section.instructions) {
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        int read = -1;
        node.each_operand([&](ValueId v) {
          const auto cast = casts.find(root_of(program_, v).index);
          const int of_this = cast != casts.end() ? cast->second : parameter_of(v);
          if (of_this < 0) return;
          read = of_this;
          auto& held = held_[static_cast<size_t>(read)];
          auto& of = places_[held.place].flats[held.of.flat];
          (instruction.phase == Phase::forward ? of.in_forward : of.in_backward) = true;
          const bool epilogue = placed_.where(instruction).place == kEpilogue;
          if (held.place != kPrologue || !epilogue || held.late) return;
          held.late = tied_ = true;
          of.read_late += held.read;
        });
        if (read >= 0 && casts_weight(instruction)) {
          casts[root_of(program_, instruction.outputs[0]).index] = read;
        }
      }
    }
  }

  // Finds parameters whose gradients are also summed over tensor ranks, alone or in a bucket.
  void find_sums() {
    std::map<std::pair<int32_t, int64_t>, int> views;  // by frame and offset: index into held_
    for (const auto& value : program_.values) {
      if (value.name.role != ValueRole::gradient) continue;
      const auto held = index_.find(value.name.subject);
      if (held != index_.end()) views[{value.place.frame, value.place.offset}] = held->second;
    }
    std::set<int> summed;
    for (const auto& section : program_.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != Instruction::Kind::collective || !moves_gradients(instruction) ||
            !program_.streams[instruction.stream].axes.contains("tensor")) {
          continue;
        }
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        node.each_operand([&](ValueId v) {
          const auto& [type, strides, place, view_of, name] = program_.values[v.index];
          const auto end = views.lower_bound({place.frame, place.offset + type.bytes()});
          for (auto at = views.lower_bound({place.frame, place.offset}); at != end; ++at) {
            summed.insert(at->second);
          }
        });
      }
    }
    for (int index : summed) {
      const auto& held = held_[static_cast<size_t>(index)];
      places_[held.place].flats[held.of.flat].summed += held.of.gradient;
    }
  }

  // Adds up the values that forward ops compute and backward ops read.
  void save() {
    std::unordered_map<int32_t, const Where*> made;
    std::set<int32_t> saved, low, crossed, entered;
    for (const auto& section : program_.sections) {
      if (section.role.kind == SectionKind::step) break;
      for (const auto& instruction : section.instructions) {
        const auto& here = placed_.where(instruction);
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        node.each_operand([&](ValueId v) {
          const auto base = root_of(program_, v);
          const auto found = made.find(base.index);
          if (found == made.end()) return;
          const auto& [place, block] = *found->second;
          const bool crosses = place == kBlock && block != here.block;
          if (instruction.phase == Phase::backward) {
            if (saved.insert(base.index).second) {
              places_[place].saved += bytes_of(program_, base);
              if (low.contains(base.index)) places_[place].low += bytes_of(program_, base);
            }
            if (crosses && entered.insert(base.index).second) {
              entering_ += bytes_of(program_, base);
            }
          } else if (crosses && crossed.insert(base.index).second) {
            crossing_ += bytes_of(program_, base);
          }
        });
        if (instruction.phase != Phase::forward) continue;
        for (auto v : instruction.outputs) {
          if (!v.defined() || persistent(v)) continue;
          made.try_emplace(root_of(program_, v).index, &here);
          if (casts_weight(instruction)) low.insert(root_of(program_, v).index);
        }
      }
    }
    // Each block of the folded graph was counted once.
    crossing_ /= scopes_.blocks();
    entering_ /= scopes_.blocks();
  }

  // Adds up the values that weight gradients read and other ops compute.
  void keep_operands() {
    std::set<int32_t> made, kept;
    for (const auto& section : program_.sections) {
      if (section.role.kind == SectionKind::step) break;
      for (const auto& instruction : section.instructions) {
        const auto place = placed_.where(instruction).place;
        const bool gradient = placed_.is_weight_gradient(instruction);
        const graph::Node node{.op = instruction.op, .args = instruction.args};
        // Parts of a pipeline add up their contributions to a gradient.
        const bool adds = instruction.op == "aten::add.Tensor" &&
                          is_gradient(instruction.outputs.front());
        node.each_operand([&](ValueId v) {
          const auto base = root_of(program_, v);
          const bool read = gradient && !adds && made.contains(base.index);
          if (!read || !kept.insert(base.index).second) return;
          places_[place].operands += bytes_of(program_, base);
        });
        for (auto v : instruction.outputs) {
          if (v.defined() && !gradient && !persistent(v)) made.insert(root_of(program_, v).index);
        }
      }
    }
  }

  bool persistent(ValueId v) const {
    const auto frame = program_.values[v.index].place.frame;
    return frame >= 0 && program_.frames[frame].kind == Frame::Kind::persistent;
  }

  void weigh() {
    for (const auto& binding : program_.bindings) {
      if (binding.kind == Binding::Kind::parameter) {
        const auto place = scopes_.of_parameter(binding.name);
        const double bytes = bytes_of(program_, binding.value);
        places_[place].weights += bytes + kept_bytes(binding);
        if (options_.trains) places_[place].gradients += bytes;
        add_to_flat(binding, place, bytes);
      } else if (binding.kind == Binding::Kind::state) {
        places_[scopes_.of_parameter(name_of(binding.value).subject)].states += bytes_of(
            program_, binding.value);
      }
    }
  }

  // Returns the bytes of a parameter's values that are kept in a low precision beside it.
  double kept_bytes(const Binding& binding) const {
    const auto& type = program_.values[binding.value.index].type;
    if (!plan_.precision.keep_weights || type.dtype != graph::DType::float32) return 0;
    const auto subject = [&](ValueId v) -> const compile::ValueName& {
      const auto& value = program_.values[v.index];
      return (value.view_of.defined() ? program_.values[value.view_of.index] : value).name;
    };
    const bool kept = std::ranges::any_of(program_.values, [&](const auto& value) {
      return value.name.role == compile::ValueRole::kept_parameters &&
             value.name.subject == subject(binding.value).subject;
    });
    return kept ? static_cast<double>(type.numel()) *
                      static_cast<double>(graph::size_of(*plan_.precision.dtype))
                : 0;
  }

  void add_to_flat(const Binding& binding, LayerKind place, double bytes) {
    mesh::AxisSet sharded;
    const auto placed = plan_.placements.find(binding.name);
    for (size_t a = 0; placed != plan_.placements.end() && a < placed->second.size(); ++a) {
      if (!placed->second[a].is_shard() || plan_.mesh.axes[a].size == 1) continue;
      sharded.insert(plan_.mesh.axes[a].name);
    }
    auto& flats = places_[place].flats;
    auto flat = std::find_if(flats.begin(), flats.end(),
                             [&](const FlatGroup& known) { return known.axes == sharded; });
    if (flat == flats.end()) {
      flat = flats.insert(flats.end(), {.axes = sharded});
      flat->experts = sharded.contains("expert");
    }
    const auto dtype = program_.values[binding.value.index].type.dtype;
    const auto& precision = plan_.precision;
    const bool low = precision.dtype && precision.scopes.empty() && dtype == graph::DType::float32;
    const double read = low ? bytes * static_cast<double>(graph::size_of(*precision.dtype)) /
                                  static_cast<double>(graph::size_of(dtype))
                            : bytes;
    flat->weights += bytes;
    if (options_.trains) flat->gradients += bytes;
    flat->gathered += read;
    if (options_.trains) flat->largest = std::max(flat->largest, bytes);
    const auto index = static_cast<size_t>(flat - flats.begin());
    const auto& value = program_.values[binding.value.index];
    parameters_[{value.place.frame, value.place.offset}] = {value.type.bytes(),
                                                            static_cast<int>(held_.size())};
    index_[binding.name] = held_.size();
    double whole = static_cast<double>(graph::size_of(dtype));
    for (auto size : binding.shape) whole *= static_cast<double>(size);
    held_.push_back({place, read, {whole, bytes, index}});
  }

  // Counts the reductions of each flat, which grow to a least size, and finds when each is ready.
  void cut_by_size() {
    const auto least = static_cast<double>(plan_.communication.bucket_bytes);
    for (int place = 0; place < kLayerKinds; ++place) {
      auto& layer = places_[place];
      std::vector<Member> members;
      double all = 0;
      for (const auto& input : graph_.inputs) {
        const auto found = index_.find(input.name);
        if (found == index_.end() || held_[found->second].place != place) continue;
        members.push_back(held_[found->second].of);
        all += members.back().whole;
      }
      const auto buckets = buckets_by_size(members, least);
      const double share = place == kBlock ? std::min(1.0, all / least) : 1;
      for (const auto& bucket : buckets) {
        std::set<size_t> flats;
        for (size_t k : bucket) flats.insert(members[k].flat);
        for (size_t flat : flats) layer.flats[flat].pieces += buckets.size() > 1 ? 1 : share;
      }
      layer.buckets = buckets_of_block(members, buckets, layer.backward,
                                       place == kBlock ? static_cast<int>(scopes_.blocks()) : 1);
    }
  }

  // A parameter.
  struct Held {
    LayerKind place;
    double read;        // bytes, as ops read it
    Member of;          // for the buckets of its place
    bool late = false;  // the epilogue reads it, though it is the prologue's
  };

  const Program& program_;
  const plan::Plan& plan_;
  const graph::Graph& graph_;
  const LayerScopes& scopes_;
  const InstructionPlaces placed_;
  simulate::OpCosts& costs_;
  const AccountOptions options_;
  Layer places_[kLayerKinds];
  std::vector<Held> held_;
  std::unordered_map<std::string, size_t> index_;  // by name: into held_
  // By frame and offset: bytes, index into held_.
  std::map<std::pair<int32_t, int64_t>, std::pair<int64_t, int>> parameters_;
  std::map<std::string, double> tail_;         // by block, so far
  std::unordered_map<int32_t, double> ready_;  // by value: seconds into its place's backward pass
  bool tied_ = false;
  double step_ = 0, norm_ = 0, crossing_ = 0, entering_ = 0;
  bool all_measured_ = true;
};

}  // namespace

Layers account(const compile::Program& program, const plan::Plan& plan, const Folded& folded,
               simulate::OpCosts& costs, const AccountOptions& options) {
  const LayerScopes scopes(folded);
  return Accounts(program, plan, folded.graph, scopes, costs, options).run();
}

}  // namespace perigee::search
