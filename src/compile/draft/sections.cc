// The prologue, which counts labels, and the sections of each microbatch: forward and
// backward pass.
#include "compile/draft/sections.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/fail.h"
#include "compile/draft/layout.h"
#include "compile/draft/lower.h"
#include "compile/draft/source.h"
#include "compile/gradients/collector.h"
#include "compile/gradients/gathers.h"
#include "compile/gradients/gradients.h"
#include "compile/gradients/reductions.h"
#include "compile/gradients/state.h"
#include "compile/gradients/units.h"
#include "compile/graph/microbatch.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::Input;
using graph::Output;

namespace {

using Instructions = std::vector<DraftInstruction>;

// Starts the all-reduce of a sum over all microbatches.
void start_all_reduce(Draft& draft, ValueId value, const mesh::AxisSet& axes,
                      const std::string& reduce, Instructions& out) {
  out.push_back(all_reduce(draft, value, Stream::over(axes), reduce));
  if (draft.program.microbatches > 1) out.back().when = kLast;
}

// Loads data inputs where a section first reads them.
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

// Appends the sections that compute the averages; returns their values.
std::vector<ValueId> make_prologue(Draft& draft, const graph::Graph& graph,
                                   const Microbatches& microbatches,
                                   const std::vector<std::string>& names,
                                   const std::vector<ValueId>& inputs, const mesh::Mesh& mesh,
                                   TraceSource& traces) {
  std::vector<ValueId> averages;
  DraftSection section{{.kind = SectionKind::prologue}, true, {}},
      last{{.kind = SectionKind::prologue_end}, false, {}};
  Lowering lowering(draft, graph, names, mesh, traces);
  for (size_t i = 0; i < graph.inputs.size(); ++i) lowering.set(graph.inputs[i].value, inputs[i]);
  count_uses(graph, microbatches.prologue, lowering);
  for (const auto& average : microbatches.averages) lowering.count_use(average.source);
  Loads loads(draft, graph, lowering);
  run_nodes(
      graph, microbatches.prologue, loads, lowering, section.instructions, [](auto) {}, [] {},
      [](auto) {});
  const double share = 1.0 / static_cast<double>(draft.program.microbatches);
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
                          : Home{Home::Kind::communication,
                                 draft.number_of(Stream::over(average.axes)), true};
    const ValueId value = draft.add(graph.type(result), names[result.index], home);
    add_up(section.instructions, draft, value, lowering.get(average.source),
           graph.nodes[average.node].get<bool>("total", false) ? 1 : share);
    if (!average.axes.empty()) {
      last.instructions.push_back(all_reduce(draft, value, Stream::over(average.axes), "sum"));
    }
    averages.push_back(value);
  }
  draft.sections.push_back(std::move(section));
  if (!last.instructions.empty()) draft.sections.push_back(std::move(last));
  return averages;
}

// Appends the instructions that keep an output in a value that is read after the step. A Partial
// output is reduced; `number`: of its reduction.
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
                                 : Home{Home::Kind::communication,
                                        draft.number_of(Stream::over(axes)), true};
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
         "microbatches that keep their results must read the same inputs as the others, but on "
         "rank {} they read {} inputs, not {}: leave kept_microbatches out",
         source.rank, graph.inputs.size(), other.inputs.size());
  }
  for (auto& bucket : gradients.buckets) bucket.section = 0;
  for (auto& parameter : gradients.parameters) {
    if (!parameter.gradient.defined()) continue;
    parameter.gradient = {};
    parameter.earlier.clear();
    for (const auto& output : graph.outputs) {
      const bool own = output.kind == Output::Kind::gradient &&
                       output.name == graph.inputs[parameter.input].name;
      if (own) parameter.add(output.value);
    }
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
    draft.sections.push_back({section.role, true, {}});
    Instructions out;
    // Sections of a pipeline's parts are consecutive in the graph.
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
      const bool partial = !axes_where(source.plan.mesh, source.local.outputs[o],
                                       mesh::Placement::Kind::partial)
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
          collector.gradient_ready(v, out);
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
        if (const auto kept = gradients.kept_buffers.find(i);
            kept != gradients.kept_buffers.end()) {
          const auto before = kept->second.before;
          out.push_back(
              in_place("perigee::copy_", {{"self", before}, {"source", inputs[i]}}, {before}));
          if (draft.program.microbatches > 1) out.back().when = kFirst;
        }
        out.push_back(in_place("perigee::copy_",
                               {{"self", inputs[i]}, {"source", lowering.get(output.value)}},
                               {inputs[i]}));
      }
    }
    draft.sections.back().instructions = std::move(out);
  }
}

}  // namespace perigee::compile
