// The sections that run for each microbatch: counting labels before, then forward and backward.
#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "compile/layout.h"
#include "compile/lower.h"
#include "compile/passes.h"
#include "compile/reductions.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::Input;
using graph::Output;

namespace {

using Instructions = std::vector<DraftInstruction>;

DraftInstruction when(uint8_t runs, DraftInstruction instruction) {
  instruction.when = runs;
  return instruction;
}

// self = source * scale in the first microbatch, self += source * scale in the others.
void add_up(Instructions& out, const Draft& draft, ValueId self, ValueId source, double scale) {
  std::vector<std::pair<std::string, graph::Arg>> first{{"self", self}, {"source", source}};
  std::vector<std::pair<std::string, graph::Arg>> later{{"self", self}, {"other", source}};
  if (scale != 1) {
    first.emplace_back("scale", scale);
    later.emplace_back("scale", scale);
  }
  const bool several = draft.program.microbatches > 1;
  out.push_back(when(several ? kFirst : kAlways, in_place("perigee::copy_", first, {self})));
  if (several) {
    out.push_back(when(kMiddle | kLast, in_place("perigee::accumulate_", later, {self})));
  }
}

// Starts reducing what all microbatches have added up.
void start_all_reduce(Draft& draft, ValueId value, const std::string& axes,
                      const std::string& reduce, Instructions& out) {
  out.push_back(when(draft.program.microbatches > 1 ? kLast : kAlways,
                     all_reduce(draft, value, axes, reduce)));
}

// Has data inputs loaded where a section first reads them.
class Loads {
 public:
  Loads(Draft& draft, const graph::Graph& graph, Lowering& lowering)
      : draft_(draft), graph_(graph), lowering_(lowering) {
    for (const auto& input : graph.inputs) {
      if (input.kind == Input::Kind::data) data_[input.value.index] = &input;
    }
  }

  void need(graph::ValueId v, Instructions& out) {
    const auto found = data_.find(v.index);
    if (found == data_.end() || lowering_.get(v).defined()) return;
    const auto& name = found->second->name;
    const ValueId value = draft_.add(graph_.type(v), name);
    lowering_.set(v, value);
    auto load = in_place(name, {}, {value});
    load.instruction.kind = Instruction::Kind::load;
    load.instruction.in_place = false;
    out.push_back(std::move(load));
    for (auto& binding : draft_.program.bindings) {
      if (binding.kind == Binding::Kind::data && binding.name == name) binding.value = value;
    }
  }

 private:
  Draft& draft_;
  const graph::Graph& graph_;
  Lowering& lowering_;
  std::map<int32_t, const Input*> data_;
};

void run_nodes(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes, Loads& loads,
               Lowering& lowering, Instructions& out, auto before, auto started, auto after) {
  for (auto id : nodes) {
    before(id);
    graph.nodes[id].each_operand([&](graph::ValueId v) { loads.need(v, out); });
    lowering.run(id, out);
    if (graph::is_collective(graph.nodes[id].op)) started();
    for (auto v : graph.nodes[id].outputs) {
      if (v.defined()) after(v);
    }
  }
}

void count_uses(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes,
                Lowering& lowering) {
  for (auto id : nodes) {
    graph.nodes[id].each_operand([&](graph::ValueId v) { lowering.count_use(v); });
  }
}

// Appends the sections that add up the averages; returns their values.
std::vector<ValueId> make_prologue(Draft& draft, const graph::Graph& graph,
                                   const Microbatches& microbatches,
                                   const std::vector<std::string>& names,
                                   const std::vector<ValueId>& inputs, const mesh::Mesh& mesh,
                                   TraceSource& traces) {
  std::vector<ValueId> averages;
  DraftSection section{"prologue", true, {}}, last{"prologue_end", false, {}};
  Lowering lowering(draft, graph, names, mesh, traces);
  for (size_t i = 0; i < graph.inputs.size(); ++i) lowering.set(graph.inputs[i].value, inputs[i]);
  count_uses(graph, microbatches.prologue, lowering);
  for (const auto& average : microbatches.averages) lowering.count_use(average.source);
  Loads loads(draft, graph, lowering);
  run_nodes(
      graph, microbatches.prologue, loads, lowering, section.instructions, [](auto) {}, [] {},
      [](auto) {});
  const double factor = 1.0 / static_cast<double>(draft.program.microbatches);
  for (const auto& average : microbatches.averages) {
    loads.need(average.source, section.instructions);
    const auto result = graph.nodes[average.node].outputs[0];
    if (!graph::is_floating(graph.type(result).dtype)) {
      fail("compile",
           "an average over microbatches must be of a floating type, but scope '{}' has {}",
           graph.nodes[average.node].scope, graph::name_of(graph.type(result).dtype));
    }
    const Home home = average.axes.empty()
                          ? Home{Home::Kind::persistent}
                          : Home{Home::Kind::communication, draft.stream(average.axes), true};
    const ValueId value = draft.add(graph.type(result), names[result.index], home);
    add_up(section.instructions, draft, value, lowering.get(average.source), factor);
    if (!average.axes.empty()) {
      last.instructions.push_back(all_reduce(draft, value, average.axes, "sum"));
    }
    averages.push_back(value);
  }
  draft.sections.push_back(std::move(section));
  if (!last.instructions.empty()) draft.sections.push_back(std::move(last));
  return averages;
}

// The gradients' way into their buckets, and the buckets' reduction.
class Collector {
 public:
  Collector(Draft& draft, const Source& source, const Gradients& gradients, Lowering& lowering)
      : draft_(draft), source_(source), gradients_(gradients), lowering_(lowering) {
    const auto& graph = source.local.graph;
    for (size_t p = 0; p < gradients.parameters.size(); ++p) {
      const auto& parameter = gradients.parameters[p];
      origins_.push_back(parameter.gradient);
      if (!parameter.gradient.defined()) continue;
      by_value_[parameter.gradient.index].push_back(p);
      // The op that makes the gradient writes it in place, through reshapes, when nobody else reads
      // it.
      auto v = parameter.gradient;
      const graph::Node* node = nullptr;
      while (lowering.uses(v) == 1 && graph.values[v.index].producer >= 0) {
        node = &graph.nodes[graph.values[v.index].producer];
        if (node->op != "perigee::reshape") break;
        v = std::get<graph::ValueId>(*node->find("self"));
        node = nullptr;
      }
      origins_.back() = v;
      if (!node) continue;
      const ValueId target = v == parameter.gradient
                                 ? parameter.value
                                 : draft.add_view(parameter.value, 0, graph.type(v),
                                                  contiguous_strides(graph.type(v).shape),
                                                  draft.value(parameter.value).name);
      lowering.direct(v, target, adds_up(parameter.bucket) ? kFirst : kAlways);
    }
    missing_.resize(gradients.buckets.size());
    numbers_.resize(gradients.buckets.size());
    for (const auto& parameter : gradients.parameters) {
      if (parameter.gradient.defined()) ++missing_[parameter.bucket];
    }
  }

  // Announces the reductions of the section that begins.
  void begin(size_t section, Reductions& reductions) {
    section_ = section;
    reductions_ = &reductions;
    for (size_t b = 0; b < gradients_.buckets.size(); ++b) {
      const auto& bucket = gradients_.buckets[b];
      if (bucket.section != section || missing_[b] == 0 || !is_reduced(static_cast<int32_t>(b))) {
        continue;
      }
      graph::NodeId behind = put_off(static_cast<int32_t>(b)) ? Reductions::kEnd : 0;
      for (int32_t p : bucket.parameters) {
        const auto& parameter = gradients_.parameters[p];
        if (parameter.gradient.defined()) {
          behind = std::max(behind, reductions.maker(parameter.gradient));
        }
      }
      numbers_[b] = reductions.add(behind);
    }
  }

  // Called when the graph value is there.
  void arrived(graph::ValueId v, Instructions& out) {
    const auto found = by_value_.find(v.index);
    if (found == by_value_.end()) return;
    for (size_t p : found->second) {
      const auto& parameter = gradients_.parameters[p];
      const bool direct = lowering_.is_direct(origins_[p]);
      if (!direct && reduced_each_time(parameter.bucket)) {
        out.push_back(in_place("perigee::copy_",
                               {{"self", parameter.value}, {"source", lowering_.get(v)}},
                               {parameter.value}));
      } else if (!direct) {
        add_up(out, draft_, parameter.value, lowering_.get(v), 1);
      } else if (adds_up(parameter.bucket)) {
        out.push_back(when(
            kMiddle | kLast,
            in_place("perigee::accumulate_",
                     {{"self", parameter.value}, {"other", lowering_.get(v)}}, {parameter.value})));
      }
      const int32_t b = parameter.bucket;
      if (--missing_[b] > 0 || !is_reduced(b)) continue;
      if (put_off(b)) {
        late_.push_back(b);
      } else {
        reduce(b, out);
      }
    }
    by_value_.erase(found);
  }

  // Called at a section's end: reductions that were put off, and in the last one gradients that no
  // node makes.
  void finish(Instructions& out) {
    const bool last = section_ + 1 == source_.sections.size();
    while (last && !by_value_.empty()) arrived({by_value_.begin()->first}, out);
    for (int32_t b : std::exchange(late_, {})) reduce(b, out);
    end_scatters(out);
  }

 private:
  struct Scattered {
    int32_t bucket = -1;
    ValueId part;
    int32_t event = -1;
    uint8_t runs = kAlways;
  };

  bool several() const { return draft_.program.microbatches > 1; }
  bool is_reduced(int32_t b) const {
    if (clips_first(source_)) return false;
    return gradients_.buckets[b].level > 0 || !gradients_.buckets[b].axes.empty();
  }
  // Units whose gradients are kept in parts are reduced in every microbatch; then the parts add up.
  bool reduced_each_time(int32_t b) const { return gradients_.buckets[b].level >= 2; }
  bool adds_up(int32_t b) const { return several() && !reduced_each_time(b); }
  // Reduced at the end of the backward pass. What is kept in parts is not: it would all be whole.
  bool put_off(int32_t b) const {
    return !source_.plan.communication.overlap && !reduced_each_time(b);
  }

  void reduce(int32_t b, Instructions& out) {
    reductions_->ready(
        numbers_[b], [this, b](Instructions& to) { start(b, to); }, out);
  }

  void start(int32_t b, Instructions& out) {
    const auto& bucket = gradients_.buckets[b];
    if (bucket.level == 0) {
      start_reduction(draft_, source_, bucket, bucket.reduce, several() ? kLast : kAlways, out);
    } else {
      scatter(b, out);
    }
  }

  // Starts reducing, and waits for the unit before, whose memory is then free. A unit's flat
  // tensors, of several types or cuts, come together and are under way together.
  void scatter(int32_t b, Instructions& out) {
    const auto& bucket = gradients_.buckets[b];
    Scattered started{b, bucket.part};
    const auto low = reduced_type(source_, bucket.dtype);
    if (low || (several() && reduced_each_time(b))) {
      const auto& part = draft_.value(bucket.part);
      const auto& axes = gradients_.flats[bucket.flat].unit->axes;
      started.part = draft_.add({low.value_or(part.type.dtype), part.type.shape},
                                part.name + (low ? " low" : " of a microbatch"),
                                {Home::Kind::communication, draft_.stream(axes + bucket.channel)});
    }
    started.runs = adds_up(b) ? kLast : kAlways;
    started.event =
        scatter_unit(draft_, source_, gradients_, bucket, started.part, started.runs, out);
    // Nothing is waited for where the whole gradients stay: stages behind would wait, too.
    if (source_.stage && adds_up(b) && started.part == bucket.part && bucket.axes.empty() &&
        source_.plan.communication.overlap) {
      return;
    }
    const auto unit_of = [&](int32_t bucket) {
      return gradients_.flats[gradients_.buckets[bucket].flat].unit;
    };
    if (!scattered_.empty() && unit_of(scattered_.back().bucket) != unit_of(b)) end_scatters(out);
    scattered_.push_back(started);
    if (!source_.plan.communication.overlap) end_scatters(out);
  }

  void end_scatters(Instructions& out) {
    for (const auto& scattered : std::exchange(scattered_, {})) end_scatter(scattered, out);
  }

  void end_scatter(const Scattered& scattered, Instructions& out) {
    const auto [b, part, event, runs] = scattered;
    const auto& bucket = gradients_.buckets[b];
    out.push_back(when(runs, wait_for(event)));
    if (part != bucket.part) {
      const bool low = reduced_type(source_, bucket.dtype).has_value();
      const double scale = low ? 1 / source_.plan.communication.reduce_scale : 1;
      if (reduced_each_time(b)) {
        add_up(out, draft_, bucket.part, part, scale);
      } else {
        out.push_back(when(
            runs,
            in_place("perigee::copy_", {{"self", bucket.part}, {"source", part}, {"scale", scale}},
                     {bucket.part})));
      }
    }
    // Over the axes on which the unit is not cut.
    if (!bucket.axes.empty()) {
      start_reduction(draft_, source_, bucket, bucket.reduce, several() ? kLast : kAlways, out);
    }
  }

  Draft& draft_;
  const Source& source_;
  const Gradients& gradients_;
  Lowering& lowering_;
  size_t section_ = 0;
  Reductions* reductions_ = nullptr;  // of the section
  std::map<int32_t, std::vector<size_t>>
      by_value_;                         // parameters by the graph value of their gradient
  std::vector<graph::ValueId> origins_;  // per parameter: what its op makes
  std::vector<size_t> missing_;          // per bucket
  std::vector<size_t> numbers_;          // per bucket: of its reduction
  std::vector<int32_t> late_;
  std::vector<Scattered> scattered_;  // their reductions have started
};

// Appends what keeps an output in a value of its own, read after the step; reduced where it is
// Partial: the reduction of that number.
void keep_result(Draft& draft, const Source& source, size_t output, ValueId value, double factor,
                 Reductions& reductions, size_t number, Accumulated& accumulated,
                 Instructions& out) {
  const auto& graph = source.local.graph;
  const auto& placements = source.local.outputs[output];
  const auto& mesh = source.plan.mesh;
  const auto& declared = graph.outputs[output];
  const std::string name = declared.kind == Output::Kind::loss ? "loss" : declared.name;
  const auto axes = axes_where(mesh, placements, mesh::Placement::Kind::partial);
  const Home home = axes.empty() ? Home{Home::Kind::persistent}
                                 : Home{Home::Kind::communication, draft.stream(axes), true};
  const auto [known, added] = accumulated.results.try_emplace(name);
  if (added) known->second = draft.add(graph.type(declared.value), name, home);
  const ValueId result = known->second;
  add_up(out, draft, result, value, factor);
  if (!axes.empty()) {
    const auto reduce = reduce_name(mesh, placements, name);
    reductions.ready(
        number,
        [&draft, result, axes, reduce](Instructions& to) {
          start_all_reduce(draft, result, axes, reduce, to);
        },
        out);
  }
  if (!added) return;
  Binding binding;
  binding.kind = Binding::Kind::result;
  binding.name = name;
  binding.value = result;
  for (const auto& whole : source.whole.outputs) {
    if (whole.kind != declared.kind || whole.name != declared.name) continue;
    binding.shape = source.whole.type(whole.value).shape;
    binding.ranges = mesh::local_ranges(binding.shape, placements, mesh, source.rank);
  }
  draft.bind(std::move(binding));
}

}  // namespace

Gradients gradients_of(const Source& kept, const Source& source, Gradients gradients) {
  const auto &graph = kept.local.graph, &other = source.local.graph;
  const auto same = [](const Input& a, const Input& b) {
    return a.kind == b.kind && a.name == b.name;
  };
  if (!std::equal(graph.inputs.begin(), graph.inputs.end(), other.inputs.begin(),
                  other.inputs.end(), same)) {
    fail("compile",
         "microbatches that keep their results read what others do, but on rank {} they read {} "
         "inputs, not {}: leave kept_microbatches out",
         source.rank, graph.inputs.size(), other.inputs.size());
  }
  std::map<std::string, graph::ValueId> made;
  for (const auto& output : graph.outputs) {
    if (output.kind == Output::Kind::gradient) made[output.name] = output.value;
  }
  for (auto& bucket : gradients.buckets) bucket.section = 0;
  for (auto& parameter : gradients.parameters) {
    if (!parameter.gradient.defined()) continue;
    parameter.gradient = made.at(graph.inputs[parameter.input].name);
    auto& section = gradients.buckets[parameter.bucket].section;
    section = std::max(section, kept.section_of(parameter.gradient));
  }
  return gradients;
}

void make_microbatch_sections(Draft& draft, const Source& source, const Microbatches& microbatches,
                              const Gradients& gradients, const std::vector<Gather>& gathers,
                              const std::vector<ValueId>& inputs, Accumulated& accumulated,
                              TraceSource& traces) {
  const auto& graph = source.local.graph;
  const auto names = graph::value_names(graph);
  auto& averages = accumulated.averages;
  if (averages.empty() && !microbatches.averages.empty()) {
    averages = make_prologue(draft, graph, microbatches, names, inputs, source.plan.mesh, traces);
  }

  Lowering lowering(draft, graph, names, source.plan.mesh, traces);
  for (size_t i = 0; i < graph.inputs.size(); ++i) lowering.set(graph.inputs[i].value, inputs[i]);
  for (size_t a = 0; a < averages.size(); ++a) {
    lowering.set(graph.nodes[microbatches.averages[a].node].outputs[0], averages[a]);
  }
  count_uses(graph, microbatches.micro, lowering);
  for (const auto& output : graph.outputs) {
    if (output.value.defined()) lowering.count_use(output.value);
  }
  Loads loads(draft, graph, lowering);
  Collector collector(draft, source, gradients, lowering);
  std::map<int32_t, std::vector<size_t>> kept;        // losses and results by graph value
  std::vector<size_t> numbers(graph.outputs.size());  // of their reductions
  size_t gathered = 0;

  for (size_t s = 0; s < source.sections.size(); ++s) {
    const auto& section = source.sections[s];
    const bool last = s + 1 == source.sections.size();
    draft.sections.push_back({section.name, true, {}, section.part, section.kind});
    Instructions out;
    // Sections of a pipeline's parts stand one behind the other in the graph.
    graph::NodeId end = Reductions::kEnd;
    for (size_t later = s + 1; later < source.sections.size() && end == Reductions::kEnd; ++later) {
      const auto& nodes = source.sections[later].nodes;
      if (!nodes.empty()) end = nodes.front();
    }
    std::vector<graph::NodeId> gathered_before;
    for (size_t g = gathered; g < gathers.size(); ++g) {
      if (last || gathers[g].before < end) gathered_before.push_back(gathers[g].before);
    }
    Reductions reductions(graph, section.nodes, gathered_before);
    collector.begin(s, reductions);
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      const auto& output = graph.outputs[o];
      const bool keeps = output.kind == Output::Kind::loss || output.kind == Output::Kind::result;
      if (!keeps || !output.value.defined() || source.section_of(output.value) != s) continue;
      kept[output.value.index].push_back(o);
      const bool partial =
          !axes_where(source.plan.mesh, source.local.outputs[o], mesh::Placement::Kind::partial)
               .empty();
      if (partial) numbers[o] = reductions.add(reductions.maker(output.value));
    }
    const auto keep = [&](graph::ValueId v) {
      const auto found = kept.find(v.index);
      if (found == kept.end()) return;
      for (size_t o : found->second) {
        const bool loss = graph.outputs[o].kind == Output::Kind::loss;
        keep_result(draft, source, o, lowering.get(v), loss ? microbatches.factor : 1, reductions,
                    numbers[o], accumulated, out);
      }
      kept.erase(found);
    };
    const auto gather_before = [&](graph::NodeId id) {
      for (; gathered < gathers.size() && gathers[gathered].before <= id; ++gathered) {
        gather_unit(draft, gradients, gathers[gathered], out);
        reductions.passed(out);
      }
    };
    run_nodes(
        graph, section.nodes, loads, lowering, out, gather_before, [&] { reductions.passed(out); },
        [&](graph::ValueId v) {
          keep(v);
          collector.arrived(v, out);
        });
    if (last) gather_before(Reductions::kEnd);
    while (!kept.empty()) {  // outputs that are inputs
      loads.need({kept.begin()->first}, out);
      keep({kept.begin()->first});
    }
    for (const auto& output : graph.outputs) {
      if (last && output.value.defined()) loads.need(output.value, out);
    }
    collector.finish(out);
    for (const auto& output : graph.outputs) {
      if (output.kind != Output::Kind::buffer || !output.value.defined()) continue;
      if (source.section_of(output.value) != s && !(last && source.stage == nullptr)) continue;
      for (size_t i = 0; i < graph.inputs.size(); ++i) {
        const auto& input = graph.inputs[i];
        if (input.kind != Input::Kind::buffer || input.name != output.name) continue;
        if (input.value == output.value) continue;
        out.push_back(in_place("perigee::copy_",
                               {{"self", inputs[i]}, {"source", lowering.get(output.value)}},
                               {inputs[i]}));
      }
    }
    draft.sections.back().instructions = std::move(out);
  }
}

}  // namespace perigee::compile
