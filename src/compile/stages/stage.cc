#include "compile/stages/stage.h"

#include <algorithm>
#include <numeric>
#include <ranges>
#include <set>
#include <string_view>
#include <unordered_map>

#include "base/fail.h"
#include "compile/draft/draft.h"
#include "compile/graph/weight_nodes.h"
#include "compile/stages/rendezvous.h"
#include "compile/stages/shared_gradients.h"
#include "compile/stages/stage_inputs.h"
#include "plan/pipeline.h"
#include "plan/units.h"
#include "schedule/of_plan.h"

namespace perigee::compile {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::NodeId;
using graph::Output;
using graph::Phase;
using graph::ValueId;
using plan::kEveryPart;

namespace {

class Cutting {
 public:
  Cutting(shard::LocalGraph& local, const plan::Plan& plan, const Schedule& schedule, int64_t rank,
          PoolsOfFrames pools, Rendezvous& rendezvous, const StageInputs* given,
          const StageTransfers* transfers)
      : local_(local),
        rendezvous_(rendezvous),
        given_(given),
        transfers_(transfers),
        rank_(rank),
        old_(local.graph),
        plan_(plan),
        stages_(stage_of_parts(plan)),
        parts_(plan::parts_of(old_, plan.pipeline)),
        shared_(find_shared_gradients(old_, parts_, stages_)),
        is_input_(old_.values.size()),
        moved_(old_.nodes.size(), -1),
        schedule_(schedule),
        order_(schedule.orders[stage_of(plan, rank)]),
        pools_(std::move(pools)) {
    for (auto* pools : {&pools_.recomputed, &pools_.kept}) {
      if (!pools->empty()) continue;
      pools->resize(static_cast<size_t>(schedule.stages * schedule.chunks));
      std::iota(pools->begin(), pools->end(), 0);
    }
    stage_.index = stage_of(plan, rank);
    if (transfers) edges_ = transfers->edges;
    stage_.parts = schedule.parts[stage_.index];
    std::sort(stage_.parts.begin(), stage_.parts.end());
    stage_.kept = kept_microbatches(order_, schedule.microbatches,
                                    plan_.recompute.kept_microbatches);
    const auto kept = std::ranges::count(stage_.kept, true);
    if (kept == 0 || kept == std::ssize(stage_.kept)) stage_.kept.clear();
    for (const auto& input : old_.inputs) is_input_[input.value.index] = true;
    for (size_t n = 0; n < old_.nodes.size() && plan.overlap.experts; ++n) {
      if (is_exchange(old_.nodes[n].op)) exchanging_.insert(parts_[n]);
    }
  }

  Stage run() {
    new_.scopes = old_.scopes;
    add_inputs();
    for (size_t n = 0; n < old_.nodes.size(); ++n) {
      if (parts_[n] == kEveryPart || shared_.sums[n]) continue;
      visit(static_cast<NodeId>(n));
    }
    for (size_t o = 0; o < old_.outputs.size(); ++o) add_output(o);
    make_sections();
    sort();
    for (const auto& section : stage_.sections) {
      if (!section.part.deferred) continue;
      auto kept = section.part;
      kept.kept = true;
      stage_.copies[section.part] = 1;
      if (!stage_.kept.empty()) stage_.copies[kept] = 1;
    }
    const auto interleaved = find_interleaved_ops(schedule_, edges_, exchanging_);
    stage_.interleaved = interleaved[stage_.index];
    separate_users(pools_.recomputed, edges_);
    separate_users(pools_.kept, edges_);
    const auto& copies = rendezvous_.copies(schedule_, edges_, interleaved,
                                            plan_.recompute.kept_microbatches, pools_);
    const auto add = [&](const PartId& part, int owner, int64_t count) {
      auto frame = part;
      frame.part = owner;
      if (frame != part) stage_.frames[part] = frame;
      stage_.copies[frame] = count;
    };
    for (int part : stage_.parts) {
      add({.part = part}, pools_.recomputed[part], copies[part].recomputed);
      if (stage_.kept.empty()) continue;
      add({.part = part, .kept = true}, pools_.kept[part], copies[part].kept);
    }
    for (const auto& node : new_.nodes) {
      if (node.op != "comm::send" && node.op != "comm::receive") continue;
      stage_.messages.push_back(node);
      std::erase_if(stage_.messages.back().args,
                    [](const auto& arg) { return arg.first == "self"; });
      stage_.messages.back().outputs.clear();
    }
    local_.graph = std::move(new_);
    local_.inputs = std::move(placements_);
    local_.outputs = std::move(outputs_);
    return std::move(stage_);
  }

 private:
  bool has(PipelineKind kind) const {
    return std::any_of(order_.begin(), order_.end(),
                       [&](const auto& op) { return op.kind == kind; });
  }

  void make_sections() {
    const bool splits = has(PipelineKind::weight_grad);
    const bool training = splits || has(PipelineKind::backward);
    std::vector<bool> weights(new_.nodes.size());
    std::set<int> deferred;  // parts
    if (splits && !plan_.overlap.deferred.empty()) {
      fail("overlap",
           "{} already defers the gradients of all weights, also that of {}: leave deferred_head "
           "out, or choose another schedule (1f1b)",
           schedule_.name, fmt::join(plan_.overlap.deferred, ", "));
    }
    if (splits) {
      weights = find_weight_nodes(new_, part_);
    } else if (training && !plan_.overlap.deferred.empty() &&
               mine(schedule_.stages * schedule_.chunks - 1)) {
      weights = find_deferred_nodes(new_, part_, plan_.overlap.deferred);
      for (size_t n = 0; n < weights.size(); ++n) {
        if (weights[n]) deferred.insert(part_[n]);
      }
      if (deferred.empty()) {
        fail("overlap",
             "deferred_head defers the last stage's contribution to the gradient of {}, but it has "
             "none, or needs it in its backward pass: leave deferred_head out, or name another "
             "parameter (head)",
             fmt::join(plan_.overlap.deferred, ", "));
      }
      const auto limit = plan_.overlap.deferred_limit;
      stage_.deferred = limit == 0 ? schedule_.microbatches
                                   : std::min<int64_t>(limit, schedule_.microbatches);
    }
    auto& sections = stage_.sections;
    for (int part : stage_.parts)
      sections.push_back({.kind = SectionKind::forward, .part = {.part = part}});
    for (auto part = stage_.parts.rbegin(); part != stage_.parts.rend() && training; ++part) {
      sections.push_back({.kind = SectionKind::backward, .part = {.part = *part}});
      const bool defers = deferred.contains(*part);
      if (splits || defers) {
        sections.push_back(
            {.kind = SectionKind::weights, .part = {.part = *part, .deferred = defers}});
      }
    }
    for (size_t n = 0; n < new_.nodes.size(); ++n) {
      const auto kind = new_.nodes[n].phase == Phase::forward ? SectionKind::forward
                        : weights[n]                          ? SectionKind::weights
                                                              : SectionKind::backward;
      const auto found = std::find_if(sections.begin(), sections.end(), [&](const auto& section) {
        return section.part.part == part_[n] && section.kind == kind;
      });
      stage_.section.push_back(static_cast<int>(found - sections.begin()));
    }
  }

  // Sorts the nodes by section.
  void sort() {
    std::vector<size_t> order(new_.nodes.size()), place(new_.nodes.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return stage_.section[a] < stage_.section[b]; });
    std::vector<Node> nodes;
    std::vector<int> section;
    for (size_t k = 0; k < order.size(); ++k) {
      place[order[k]] = k;
      nodes.push_back(std::move(new_.nodes[order[k]]));
      section.push_back(stage_.section[order[k]]);
    }
    for (auto& node : nodes) {
      if (node.forward_node >= 0) node.forward_node = static_cast<NodeId>(place[node.forward_node]);
    }
    for (auto& value : new_.values) {
      if (value.producer >= 0) value.producer = static_cast<NodeId>(place[value.producer]);
    }
    new_.nodes = std::move(nodes);
    stage_.section = std::move(section);
  }

  bool mine(int part) const { return stages_[part] == stage_.index; }

  void add_inputs() {
    auto users = users_of(old_, parts_, stages_, shared_.sums);
    require_buffers_of_one_part(old_, parts_, stages_);
    std::unordered_map<std::string_view, ValueId> inputs;  // by name
    for (const auto& input : old_.inputs) inputs.emplace(input.name, input.value);
    for (size_t o = 0; o < old_.outputs.size(); ++o) {
      const auto& output = old_.outputs[o];
      if (output.kind != Output::Kind::gradient || !output.value.defined()) continue;
      auto& stages = users[inputs.at(output.name).index];
      const auto producer = old_.values[output.value.index].producer;
      if (const auto share = shared_.shares.find(o); share != shared_.shares.end()) {
        for (const auto& [stage, leaves] : share->second) stages.insert(stage);
      } else if (producer >= 0 && parts_[producer] != kEveryPart) {
        stages.insert(stages_[parts_[producer]]);
      }
    }
    for (size_t i = 0; i < old_.inputs.size(); ++i) {
      const auto& input = old_.inputs[i];
      const auto& stages = users[input.value.index];
      // A unit's layout needs its unused parameters, also in an evaluation; other unused inputs
      // matter only where a step updates them. They are where checkpoints and units have them.
      const bool unused = stages.empty() && input.kind != Input::Kind::constant &&
                          (plan::is_in_unit(plan_, input.name) || has(PipelineKind::backward) ||
                           has(PipelineKind::weight_grad));
      if (input.kind == Input::Kind::parameter && stages.size() > 1) {
        stage_.shared[input.name] = {stages.begin(), stages.end()};
      }
      const bool stays = unused && (given_ ? given_->has(input.name, rank_) : stage_.index == 0);
      if (!stages.contains(stage_.index) && !stays) continue;
      const auto v = new_.add_input(input.kind, input.name, old_.type(input.value));
      new_.inputs.back().trainable = input.trainable;
      new_.inputs.back().batched = input.batched;
      new_.inputs.back().data = input.data;
      placements_.push_back(local_.inputs[i]);
      inputs_[input.value.index] = v;
    }
  }

  graph::TensorType wire_type(graph::TensorType type) const {
    if (plan_.pipeline.dtype && graph::is_floating(type.dtype)) type.dtype = *plan_.pipeline.dtype;
    return type;
  }

  void visit(NodeId n) {
    const auto& node = old_.nodes[n];
    const int part = parts_[n];
    if (node.op == plan::kCross) return cross(node);
    node.each_operand([&](ValueId v) { announce(v, part); });
    if (mine(part)) emit(n, part);
  }

  // Appends a node to a part of this stage; returns its result.
  ValueId append(int part, Phase phase, const std::string& scope, const char* op,
                 std::vector<std::pair<std::string, graph::Arg>> args,
                 std::vector<graph::TensorType> results) {
    part_.push_back(part);
    const auto made = new_.add_node(op, std::move(args), std::move(results), scope, phase);
    return made.empty() ? ValueId() : made[0];
  }

  // Sends this rank's boxes of a crossing value, or receives boxes and assembles them.
  void cross(const Node& node) {
    const auto& transfer = transfers_->list.at(
        static_cast<size_t>(node.get<int64_t>("crossing", 0)));
    const auto v = std::get<ValueId>(*node.find("self")), result = node.outputs[0];
    const auto producer = old_.values[v.index].producer;
    if (producer < 0 || parts_[producer] != transfer.maker) {
      fail("compile",
           "a value that crosses between stages of unequal submeshes must be sent with the "
           "placement of its op, but one in scope '{}' between parts {} and {} is redistributed "
           "before: make the submeshes equal, or cut elsewhere",
           node.scope, transfer.maker, transfer.user);
    }
    check_direction(transfer.maker, transfer.user, node);
    if (!mine(transfer.maker) && !mine(transfer.user)) return;
    const int part = mine(transfer.maker) ? transfer.maker : transfer.user;
    const auto add = [&](const char* op, std::vector<std::pair<std::string, graph::Arg>> args,
                         std::vector<graph::TensorType> results) {
      return append(part, node.phase, node.scope, op, std::move(args), std::move(results));
    };
    const bool sends = mine(transfer.maker);
    const auto& type = old_.type(sends ? v : result);
    const auto wire = wire_type(type);
    const bool casts = wire.dtype != type.dtype;
    if (sends) {
      auto value = value_in(v, part);
      if (casts) value = add("perigee::cast", {{"self", value}}, {wire});
      send_pieces(transfer, transfers_->mesh, rank_, value, new_, add);
      return;
    }
    auto value = receive_pieces(transfer, rank_, wire, new_, add);
    if (casts) value = add("perigee::cast", {{"self", value}}, {type});
    made_[result.index] = value;
  }

  static void check_direction(int maker, int part, const Node& node) {
    if ((maker < part) == (node.phase == Phase::forward)) return;
    fail("compile",
         "activations go to later parts of a pipeline and gradients to earlier ones, but the "
         "result of {} in scope '{}' goes from part {} to part {}",
         node.op, node.scope, maker, part);
  }

  // Sends a value of this stage to a part of another one, once.
  void announce(ValueId v, int part) {
    const auto producer = old_.values[v.index].producer;
    if (producer < 0 || parts_[producer] == kEveryPart) return;
    const int maker = parts_[producer];
    if (maker != part) edges_.emplace(maker, part);
    if (stages_[maker] == stages_[part]) return;
    if (!moves_.insert({v.index, part}).second) return;
    const auto& source = old_.nodes[producer];
    if (transfers_) {
      fail(
          "compile",
          "values that cross between stages of unequal submeshes must be found before sharding, "
          "but the result of {} in scope '{}' goes from part {} to part {} only after it: make the "
          "submeshes equal, or cut elsewhere",
          source.op, source.scope, maker, part);
    }
    check_direction(maker, part, source);
    const auto channel = Stream::message(plan_.pipeline.axis,
                                         {.stage = stages_[maker], .part = maker},
                                         {.stage = stages_[part], .part = part})
                             .name();
    const auto add = [&](const char* op, std::vector<std::pair<std::string, graph::Arg>> args,
                         std::vector<graph::TensorType> results) {
      return append(mine(maker) ? maker : part, source.phase, source.scope, op, std::move(args),
                    std::move(results));
    };
    const auto type = old_.type(v), sent = wire_type(type);
    const bool casts = sent.dtype != type.dtype;
    if (mine(maker)) {
      auto value = value_in(v, maker);
      if (casts) value = add("perigee::cast", {{"self", value}}, {sent});
      add("comm::send", {{"self", value}, {"axis", channel}, {"peer", int64_t{1}}}, {});
    } else if (mine(part)) {
      auto value = add("comm::receive", {{"axis", channel}, {"peer", int64_t{0}}}, {sent});
      if (casts) value = add("perigee::cast", {{"self", value}}, {type});
      received_[{v.index, part}] = value;
    }
  }

  void emit(NodeId n, int part) {
    Node node = old_.nodes[n];
    node.each_operand([&](ValueId& v) { v = value_in(v, part); });
    std::vector<ValueId> outputs;
    for (size_t r = 0; r < node.outputs.size(); ++r) {
      const auto v = node.outputs[r];
      if (!v.defined()) {
        outputs.emplace_back();
        continue;
      }
      const auto made = new_.add_value(old_.type(v));
      new_.values[made.index].producer = static_cast<NodeId>(new_.nodes.size());
      new_.values[made.index].result = static_cast<int32_t>(r);
      outputs.push_back(made);
      if (parts_[n] == kEveryPart) {
        cloned_[{v.index, part}] = made;
      } else {
        made_[v.index] = made;
      }
    }
    node.outputs = std::move(outputs);
    if (node.forward_node >= 0) node.forward_node = moved_[node.forward_node];
    moved_[n] = static_cast<NodeId>(new_.nodes.size());
    new_.nodes.push_back(std::move(node));
    part_.push_back(part);
  }

  // Returns the value for a part of this stage: its own, received, or copied.
  ValueId value_in(ValueId v, int part) {
    if (is_input_[v.index]) return inputs_.at(v.index);
    const auto producer = old_.values[v.index].producer;
    if (parts_[producer] == kEveryPart) {
      if (const auto known = cloned_.find({v.index, part}); known != cloned_.end()) {
        return known->second;
      }
      emit(producer, part);
      return cloned_.at({v.index, part});
    }
    if (const auto known = received_.find({v.index, part}); known != received_.end()) {
      return known->second;
    }
    return made_.at(v.index);
  }

  void add_output(size_t o) {
    const auto& output = old_.outputs[o];
    const bool gradient = output.kind == Output::Kind::gradient;
    for (const auto v : gradient ? gradients(o) : std::vector{made(output.value)}) {
      new_.outputs.push_back(output);
      new_.outputs.back().value = v;
      outputs_.push_back(local_.outputs[o]);
    }
  }

  // Returns this stage's value; undefined where the stage does not make it.
  ValueId made(ValueId v) {
    if (!v.defined()) return {};
    const auto known = is_input_[v.index] ? inputs_.find(v.index) : made_.find(v.index);
    return known == (is_input_[v.index] ? inputs_ : made_).end() ? ValueId{} : known->second;
  }

  // Returns the contributions of this stage's parts to a parameter's gradient, in the order of the
  // backward pass; one undefined value where the stage does not have the parameter.
  std::vector<ValueId> gradients(size_t o) {
    const auto& output = old_.outputs[o];
    const bool has = std::any_of(new_.inputs.begin(), new_.inputs.end(), [&](const auto& input) {
      return input.kind == Input::Kind::parameter && input.name == output.name;
    });
    if (!has || !output.value.defined()) return {{}};
    const int lowest = stage_.parts.front();
    const auto add = [&](int part, std::string op,
                         std::vector<std::pair<std::string, graph::Arg>> args) {
      part_.push_back(part);
      return new_.add_node(std::move(op), std::move(args), {old_.type(output.value)}, "",
                           Phase::backward)[0];
    };
    if (const auto share = shared_.shares.find(o); share != shared_.shares.end()) {
      if (const auto own = share->second.find(stage_.index); own != share->second.end()) {
        std::vector<ValueId> sums;
        for (const auto& [part, leaves] : std::views::reverse(own->second)) {
          auto& sum = sums.emplace_back();
          for (auto v : leaves) {
            const auto next = value_in(v, part);
            sum = sum.defined() ? add(part, "aten::add.Tensor", {{"self", sum}, {"other", next}})
                                : next;
          }
        }
        return sums;
      }
    } else {
      const auto producer = old_.values[output.value.index].producer;
      const bool everywhere = producer >= 0 && parts_[producer] == kEveryPart;
      if (everywhere && !stage_.shared.contains(output.name)) {
        return {value_in(output.value, lowest)};
      }
      if (const auto v = everywhere ? ValueId() : made(output.value); v.defined()) return {v};
    }
    return {add(lowest, "perigee::full", {{"value", 0.0}})};
  }

  shard::LocalGraph& local_;
  Rendezvous& rendezvous_;
  const StageInputs* given_;  // of the whole graph
  const StageTransfers* transfers_;
  const int64_t rank_;
  const Graph old_;
  const plan::Plan& plan_;
  const std::vector<int> stages_;  // by part
  const std::vector<int> parts_;   // by old node
  const SharedGradients shared_;
  std::vector<bool> is_input_;  // by old value
  std::vector<NodeId> moved_;   // by old node: its copy in the new graph, or -1
  Graph new_;
  std::vector<mesh::Placements> placements_, outputs_;
  Stage stage_;
  std::vector<int> part_;  // by new node
  const Schedule& schedule_;
  const std::vector<PipelineOp>& order_;  // of the stage
  PoolsOfFrames pools_;
  std::set<int> exchanging_;             // parts that exchange rows, where that is hidden
  std::set<std::pair<int, int>> edges_;  // pairs of parts: the second uses results of the first
  std::map<int32_t, ValueId> inputs_, made_;                      // by old value
  std::map<std::pair<int32_t, int>, ValueId> received_, cloned_;  // by old value and part
  std::set<std::pair<int32_t, int>> moves_;                       // old value, part it goes to
};

}  // namespace

Schedule schedule_of(const plan::Plan& plan, bool evaluation) {
  auto schedule = perigee::schedule_of(plan);
  if (!evaluation) return schedule;
  for (auto& order : schedule.orders) {
    std::erase_if(order, [](const auto& op) { return op.kind != PipelineKind::forward; });
    // Each microbatch runs through all chunks before the next one starts, so that one copy of each
    // frame is enough.
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.microbatch < b.microbatch; });
  }
  return schedule;
}

Stage cut_stage(shard::LocalGraph& local, const plan::Plan& plan, const Schedule& schedule,
                int64_t rank, PoolsOfFrames pools, Rendezvous& rendezvous,
                const StageInputs* inputs, const StageTransfers* transfers) {
  redistribute_contributions(local.graph, plan.pipeline);
  return Cutting(local, plan, schedule, rank, std::move(pools), rendezvous, inputs, transfers)
      .run();
}

}  // namespace perigee::compile
