#include "search/layers/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/parallel.h"
#include "graph/ops.h"
#include "methods/method.h"
#include "plan/plan.h"
#include "search/layers/accounts.h"

namespace perigee::search {
namespace {

// Counts memory by the user's model in the place of the program's.
void count_by(const MemoryModel& model, const compile::Program& program, Layers& layers) {
  for (auto* layer : {&layers.prologue, &layers.block, &layers.epilogue}) {
    if (model.optimizer_resident) layer->states = *model.optimizer_resident * layer->weights;
    layer->transient = model.optimizer_transient.value_or(0) * layer->weights;
  }
  layers.working += model.reserve.value_or(0) * (model.reserve ? largest_buffers(program) : 0);
}

Layer between(const Layer& a, const Layer& b, double share) {
  Layer made = a;
  for (const auto field : kSums) made.*field = a.*field + (b.*field - a.*field) * share;
  made.step = a.step + (b.step - a.step) * share;
  made.norm = a.norm + (b.norm - a.norm) * share;
  return made;
}

}  // namespace

Layers between(const Layers& a, const Layers& b, double share) {
  Layers made;
  made.prologue = between(a.prologue, b.prologue, share);
  made.block = between(a.block, b.block, share);
  made.epilogue = between(a.epilogue, b.epilogue, share);
  made.working = a.working + (b.working - a.working) * share;
  made.repeated = a.repeated + (b.repeated - a.repeated) * share;
  made.crossing = a.crossing + (b.crossing - a.crossing) * share;
  made.entering = a.entering + (b.entering - a.entering) * share;
  made.tied = a.tied;
  made.masters = a.masters;
  made.measured = a.measured && b.measured;
  made.kind = a.kind;
  made.parameters = a.parameters;
  return made;
}

BlockRow LayerTables::row_of(const Folded& folded) {
  BlockRow row;
  if (folded.blocks.empty()) return row;
  for (const auto& block : folded.blocks) {
    const auto dot = block.rfind('.');
    const auto pattern = dot == std::string::npos ? "*" : block.substr(0, dot) + ".*";
    if (row.pattern.empty()) row.pattern = pattern;
    const bool known = pattern == row.pattern || std::ranges::count(row.more_patterns, pattern) > 0;
    if (!known) row.more_patterns.push_back(pattern);
  }
  // Products of activations write more than they read and are faster than products with weights
  // (Korthikanti et al. 2022, section 5). Results of the expert ranks' all-to-all are kept, too.
  for (const auto& node : folded.graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    const bool worth = (graph::is_product(node.op) && !node.op.ends_with("bmm")) ||
                       node.op == "perigee::dispatch" || node.op == "perigee::combine";
    const bool known = std::ranges::count(row.keep, node.op) > 0;
    const bool within = std::ranges::any_of(
        folded.blocks, [&](const auto& block) { return graph::contains_scope(block, node.scope); });
    if (worth && !known && within) row.keep.push_back(node.op);
  }
  return row;
}

std::string LayerTables::key_of(const Choice& choice) {
  return fmt::format("{} {} {} {} {} {} {} {} {}", choice.precision, choice.tensor, choice.sequence,
                     choice.expert, choice.context, choice.context > 1 ? choice.attention : "",
                     choice.checkpoint ? choice.every : -1, choice.selective, choice.micro);
}

std::pair<Choice, Choice> LayerTables::ends_of(const Choice& choice) {
  auto rest = choice, all = choice;
  rest.checkpoint = choice.selective;
  all.selective = false;
  rest.every = all.every = 1;
  return {rest, all};
}

std::vector<Choice> LayerTables::programs_of(const Choice& choice) const {
  std::vector<Choice> others;
  auto none = choice, least = choice, most = choice;
  none.checkpoint = none.selective = false;
  least.micro = 1;
  most.micro = samples_.most;
  if (choice.checkpoint && choice.every != 1) {
    const auto [rest, all] = ends_of(choice);
    others = {rest, all};
  } else if (choice.micro != 1 && choice.micro != samples_.most) {
    others = {least, most};
  } else if (choice.selective) {
    others = {none};
  }
  std::vector<Choice> list;
  if (others.empty() || (choice.selective && others.size() == 1)) list.push_back(choice);
  for (const auto& other : others) std::ranges::move(programs_of(other), std::back_inserter(list));
  return list;
}

void LayerTables::prepare(const std::vector<Choice>& choices) {
  if (!defined_.empty()) return;  // a script runs on one thread
  std::vector<Choice> list;
  std::set<std::string> known;
  for (const auto& choice : choices) {
    if (!known.insert("all " + key_of(choice)).second) continue;
    for (auto& program : programs_of(choice)) {
      const auto key = key_of(program);
      if (!tables_.contains(key) && known.insert(key).second) list.push_back(std::move(program));
    }
  }
  std::vector<Entry> made(list.size());
  in_parallel(list.size(), [&](size_t k) { made[k] = make(list[k]); });
  for (size_t k = 0; k < list.size(); ++k) ready_[key_of(list[k])] = std::move(made[k]);
}

const Layers* LayerTables::find(const Choice& choice, std::string& why, int kind) {
  const auto key = key_of(choice);
  auto found = tables_.find(key);
  if (found == tables_.end()) found = tables_.emplace(key, look(choice)).first;
  why = found->second.why;
  return why.empty() ? &found->second.layers[static_cast<size_t>(kind)] : nullptr;
}

const Layers* LayerTables::on_ranks(const Choice& choice, int64_t first, int64_t count,
                                    std::string& why) {
  const auto& devices = costs_.cluster().devices;
  const Layers* slowest = nullptr;
  int64_t begin = 0;
  for (size_t kind = 0; kind < devices.size(); ++kind) {
    const auto end = begin + devices[kind].count;
    const bool inside = begin < first + count && first < end;
    begin = end;
    if (!inside) continue;
    const auto* layers = find(choice, why, static_cast<int>(kind));
    if (!layers) return nullptr;
    const auto seconds = [&](const Layers& of) {
      return of.prologue.forward + of.prologue.backward + of.epilogue.forward +
             of.epilogue.backward +
             static_cast<double>(folded_.blocks.size()) * (of.block.forward + of.block.backward);
    };
    if (!slowest || seconds(*layers) > seconds(*slowest)) slowest = layers;
  }
  return slowest;
}

LayerTables::Entry LayerTables::look(const Choice& choice) {
  Entry entry;
  if (choice.checkpoint && choice.every != 1) {
    const auto [rest, all] = ends_of(choice);
    const auto *a = find(rest, entry.why), *b = a ? find(all, entry.why) : nullptr;
    if (!b) return entry;
    for (int kind = 0; kind < std::ssize(costs_.cluster().devices); ++kind) {
      const auto &without = *find(rest, entry.why, kind), &with = *find(all, entry.why, kind);
      if (choice.every == 0) {
        entry.layers.push_back(without);
        entry.layers.back().recomputing = &with;
        entry.layers.back().repeated = with.repeated;
        continue;
      }
      entry.layers.push_back(between(without, with, 1 / static_cast<double>(choice.every)));
      // While the backward pass of such a block runs, all its values are recomputed.
      entry.layers.back().working = std::max(without.working, with.working);
    }
    return entry;
  }
  if (choice.micro != 1 && choice.micro != samples_.most) {
    auto least = choice, most = choice;
    least.micro = 1;
    most.micro = samples_.most;
    const auto *a = find(least, entry.why), *b = a ? find(most, entry.why) : nullptr;
    if (!b) return entry;
    const double share = static_cast<double>(choice.micro - 1) /
                         static_cast<double>(samples_.most - 1);
    for (int kind = 0; kind < std::ssize(costs_.cluster().devices); ++kind) {
      entry.layers.push_back(
          between(*find(least, entry.why, kind), *find(most, entry.why, kind), share));
    }
    return entry;
  }
  const auto ready = ready_.find(key_of(choice));
  entry = ready == ready_.end() ? make(choice) : std::move(ready->second);
  for (auto& layers : entry.layers) layers.parameters = number(layers);
  if (choice.checkpoint && entry.why.empty()) compare_with_none(choice, entry);
  return entry;
}

void LayerTables::compare_with_none(const Choice& choice, Entry& entry) {
  auto none = choice;
  none.checkpoint = none.selective = false;
  for (auto& layers : entry.layers) {
    layers.repeated = layers.block.forward;
    if (!choice.selective) continue;
    std::string why;
    const auto* whole = find(none, why, layers.kind);
    if (!whole) continue;
    layers.repeated = std::max(0.0, layers.block.backward - whole->block.backward);
    if (layers.block.saved < whole->block.saved) continue;
    entry.why = "[auto] a selective checkpoint keeps all that the backward pass reads";
  }
}

int LayerTables::number(const Layers& layers) {
  const auto same = [&](const Layers& known) {
    return known.tied == layers.tied && known.masters == layers.masters &&
           known.prologue.flats == layers.prologue.flats &&
           known.block.flats == layers.block.flats && known.epilogue.flats == layers.epilogue.flats;
  };
  const auto found = std::ranges::find_if(numbered_, same);
  const auto number = static_cast<int>(found - numbered_.begin());
  if (found == numbered_.end()) numbered_.push_back(layers);
  return number;
}

LayerTables::Entry LayerTables::make(const Choice& choice) try {
  // With this number of data ranks the graph's samples are those of the microbatch.
  Choice table_choice;
  table_choice.tensor = choice.tensor;
  table_choice.sequence = choice.sequence;
  table_choice.expert = choice.expert;
  table_choice.context = choice.context;
  table_choice.attention = choice.attention;
  table_choice.precision = choice.precision;
  table_choice.checkpoint = choice.checkpoint;
  table_choice.selective = choice.selective;
  table_choice.data = samples_.captured / (choice.micro * choice.expert);
  methods::PlanRequest request;
  request.graph = &folded_.graph;
  request.global_batch = samples_.captured;
  request.world = table_choice.tensor * table_choice.expert * table_choice.context *
                  table_choice.data;
  request.world_given = true;
  request.eight_bits = eight_bits_;
  auto table_pins = Pins(pins_);
  // These depend on ZeRO and data ranks, which the table's program does not have.
  std::erase(table_pins.forbid, "replicated_parameters");
  std::erase(table_pins.forbid, "nd_shardings");
  const auto strategy = methods::from_json(strategy_of(table_choice, table_pins, row_), "auto",
                                           defined_);
  const auto plan = methods::make_plan(strategy, request);
  plan::verify(plan, folded_.graph);
  auto spec = spec_;
  // Parameters of blocks that were folded away.
  const auto is_folded = [&](const std::string& name) { return !folded_.graph.find_input(name); };
  std::erase_if(spec.frozen, is_folded);
  for (auto& group : spec.groups) std::erase_if(group.parameters, is_folded);
  const auto program = compile::compile(folded_.graph, plan, spec, 0, traces_);
  Entry entry;
  int64_t rank = 0;  // that has a device of the kind
  for (const auto& device : costs_.cluster().devices) {
    auto& layers = entry.layers.emplace_back(
        account(program, plan, folded_, costs_, {.trains = !spec.evaluation, .rank = rank}));
    layers.kind = static_cast<int>(std::ssize(entry.layers)) - 1;
    count_by(pins_.model, program, layers);
    rank += device.count;
  }
  return entry;
} catch (const Error& error) {
  return {.layers = {}, .why = error.what()};
}

}  // namespace perigee::search
