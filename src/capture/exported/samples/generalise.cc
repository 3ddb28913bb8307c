#include "capture/exported/samples/generalise.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "capture/exported/samples/baked_count.h"
#include "shard/loss/classify_loss.h"
#include "shard/loss/compare_samples.h"
#include "shard/loss/sample_count.h"
#include "shard/loss/sample_dim.h"

namespace perigee::exported {
namespace {

using c10::IValue;
using shard::SampleDim;
using Sizes = std::vector<int64_t>;

// Kinds of sizes that may be the number of samples or another number of the model.
enum class Guess { expansion, new_tensor, range };

const std::set<std::string> kReshapes = {"aten::view", "aten::reshape", "aten::_unsafe_view",
                                         "aten::unflatten"};
const std::set<std::string> kExpansions = {"aten::expand", "aten::broadcast_to"};
const std::set<std::string> kRepeats = {"aten::repeat", "aten::tile"};
const std::set<std::string> kNew = {"aten::full",     "aten::zeros",     "aten::ones",
                                    "aten::empty",    "aten::rand",      "aten::randn",
                                    "aten::randint",  "aten::new_zeros", "aten::new_ones",
                                    "aten::new_full", "aten::new_empty"};

Argument* find(Call& call, std::initializer_list<const char*> names) {
  for (auto& argument : call.arguments) {
    if (std::ranges::find(names, argument.name) != names.end()) return &argument;
  }
  return nullptr;
}

// Replaces sizes in a program's calls while it runs with twice the samples.
class Rewriter {
 public:
  Rewriter(const Program& program, int64_t samples, std::set<Guess> guesses)
      : program_(program),
        samples_(samples),
        guesses_(std::move(guesses)),
        sizes_(program.sizes),
        inner_(program.slots, 0) {
    sizes_.resize(program.slots);
    for (const auto& input : program.inputs) {
      sizes_[input.slot.index] = input.sizes;
      if (input.kind == Input::Kind::batch) inner_[input.slot.index] = 1;
    }
  }

  void before(size_t index, Call& call, std::span<const IValue> values) {
    if (!call.op || call.outputs.empty()) return;
    const auto& op = call.op->schema().name();
    const auto self = first_tensor(call);
    const auto at = position(self, values);
    for (const auto& slot : call.outputs) {
      if (slot.index >= 0) inner_[slot.index] = inner_of_operands(call, values);
    }
    bool changed = false;
    if (kReshapes.contains(op)) {
      changed = at && reshape(call, self, *at);
    } else if (kExpansions.contains(op) || kRepeats.contains(op)) {
      changed = expand(call, self, at, kRepeats.contains(op));
    } else if (kNew.contains(op)) {
      changed = make(call);
    } else if (op == "aten::arange") {
      changed = count(call);
    }
    if (changed) calls_[index] = call;
  }

  const std::set<Guess>& met() const { return met_; }

  // Returns the program with the sizes that were replaced.
  Program result() const {
    auto program = program_;
    for (const auto& [index, call] : calls_) program.calls[index] = call;
    for (auto& input : program.inputs) {
      if (input.kind == Input::Kind::batch) input.sizes[0] = -1;
    }
    return program;
  }

 private:
  static Slot first_tensor(const Call& call) {
    if (call.arguments.empty() || call.arguments[0].list) return {};
    const auto* slot = std::get_if<Slot>(&call.arguments[0].items.at(0));
    return slot ? *slot : Slot{};
  }

  // Returns the samples' position in a value: the dim whose size is not the export's.
  std::optional<SampleDim> position(Slot slot, std::span<const IValue> values) const {
    if (slot.index < 0 || !values[slot.index].isTensor()) return std::nullopt;
    const auto& tensor = values[slot.index].toTensor();
    const auto& sizes = sizes_[slot.index];
    if (!tensor.defined() || tensor.dim() != static_cast<int64_t>(sizes.size())) return {};
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (tensor.size(static_cast<int64_t>(d)) == sizes[d]) continue;
      const auto known = inner_[slot.index];
      const auto inner = known > 0 ? known : sizes[d] / samples_;
      return inner > 0 ? std::optional(SampleDim{static_cast<int>(d), inner}) : std::nullopt;
    }
    return std::nullopt;
  }

  int64_t inner_of_operands(const Call& call, std::span<const IValue> values) const {
    for (const auto& argument : call.arguments) {
      for (const auto& item : argument.items) {
        const auto* slot = std::get_if<Slot>(&item);
        const auto at = slot ? position(*slot, values) : std::nullopt;
        if (at) return at->inner;
      }
    }
    return 0;
  }

  bool may(Guess guess) {
    met_.insert(guess);
    return guesses_.contains(guess);
  }

  // Replaces a constant size by its multiple of the samples.
  bool replace(Item& item, int64_t size) const {
    const auto* constant = std::get_if<IValue>(&item);
    if (!constant || !constant->isInt() || constant->toInt() < 0) return false;
    item = SampleSize{size / samples_};
    return true;
  }

  const Sizes* sizes_of_result(const Call& call) const {
    const auto slot = call.outputs[0];
    return slot.index < 0 ? nullptr : &sizes_[slot.index];
  }

  bool reshape(Call& call, Slot self, SampleDim at) {
    auto* list = find(call, {"size", "shape", "sizes"});
    const auto* to = sizes_of_result(call);
    if (!list || !to) return false;
    const auto& from = sizes_[self.index];
    const auto is_empty = [](int64_t size) { return size < 1; };
    if (std::ranges::any_of(from, is_empty) || std::ranges::any_of(*to, is_empty)) return false;
    const auto found = shard::reshaped(from, *to, at, samples_);
    if (!found) return false;
    inner_[call.outputs[0].index] = found->inner;
    int64_t first = 0;  // dim of the result that the list begins with
    if (const auto* dim = find(call, {"dim"})) {
      const auto* constant = std::get_if<IValue>(&dim->items.at(0));
      if (!constant || !constant->isInt()) return false;
      first = constant->toInt() < 0 ? constant->toInt() + static_cast<int64_t>(from.size())
                                    : constant->toInt();
    }
    const auto place = found->dim - first;
    if (place < 0 || place >= static_cast<int64_t>(list->items.size())) return false;
    return replace(list->items[place], (*to)[found->dim]);
  }

  bool expand(Call& call, Slot self, std::optional<SampleDim> at, bool repeats) {
    auto* list = find(call, {"size", "repeats", "dims"});
    const auto* to = sizes_of_result(call);
    if (!list || !to || self.index < 0 || list->items.size() != to->size()) return false;
    const auto& from = sizes_[self.index];
    if (from.size() > to->size()) return false;
    const auto lead = to->size() - from.size();
    if (at) {
      const auto dim = at->dim + lead;
      return !repeats && replace(list->items[dim], (*to)[dim]);
    }
    for (size_t d = 0; d < to->size(); ++d) {
      if ((*to)[d] != samples_ || (d >= lead && from[d - lead] != 1)) continue;
      return may(Guess::expansion) && replace(list->items[d], samples_);
    }
    return false;
  }

  bool make(Call& call) {
    auto* list = find(call, {"size"});
    const auto* sizes = sizes_of_result(call);
    if (!list || !sizes || list->items.size() != sizes->size()) return false;
    const auto found = std::ranges::find(*sizes, samples_);
    if (found == sizes->end()) return false;
    return may(Guess::new_tensor) && replace(list->items[found - sizes->begin()], samples_);
  }

  bool count(Call& call) {
    auto* end = find(call, {"end"});
    const auto* start = find(call, {"start"});
    const auto* sizes = sizes_of_result(call);
    if (!end || !sizes || *sizes != Sizes{samples_}) return false;
    const auto whole = [](const Argument& argument) {
      const auto* constant = std::get_if<IValue>(&argument.items.at(0));
      return constant && constant->isInt() ? std::optional(constant->toInt()) : std::nullopt;
    };
    const auto last = whole(*end);
    if ((start && whole(*start) != 0) || !last || *last % samples_ != 0) return false;
    return may(Guess::range) && replace(end->items[0], *last);
  }

  const Program& program_;
  const int64_t samples_;  // of the export
  const std::set<Guess> guesses_;
  std::set<Guess> met_;           // kinds of guesses that were open
  std::vector<Sizes> sizes_;      // in the export, by slot
  std::vector<int64_t> inner_;    // of the samples' position, by slot; 0: not known
  std::map<size_t, Call> calls_;  // that were changed
};

// Returns the graph with all outputs in the place of the loss, so that results and new values of
// buffers are compared, too.
graph::Graph with_all_as_loss(graph::Graph graph) {
  for (auto& output : graph.outputs) output.kind = graph::Output::Kind::loss;
  return graph;
}

// Returns where the proof ended, or "". `samples`: of the export.
std::string check(const graph::Graph& graph, const graph::Graph& twice, int64_t samples) {
  if (auto ended = shard::find_sample_dependence(with_all_as_loss(graph), with_all_as_loss(twice));
      !ended.empty()) {
    return ended;
  }
  const auto proof = shard::classify_loss(twice, twice);
  if (proof.kind == shard::LossKind::mixed || proof.declared) return proof.ended;
  if (proof.kind == shard::LossKind::sum && (samples == 1 || shard::may_have_sample_count(graph))) {
    return "the loss, which is a sum over samples with a factor or divisor that may be their "
           "number";
  }
  return find_baked_count(graph, twice, samples);
}

}  // namespace

int64_t fixed_samples(const Program& program) {
  int64_t samples = -1;
  for (const auto& input : program.inputs) {
    if (input.kind != Input::Kind::batch) continue;
    if (input.sizes.empty() || input.sizes[0] < 0) return 0;
    if (samples >= 0 && input.sizes[0] != samples) return 0;
    samples = input.sizes[0];
  }
  return std::max<int64_t>(samples, 0);
}

Generalised generalise(const Program& program, const CaptureLoss& capture) {
  const auto samples = fixed_samples(program);
  Generalised found;
  graph::Graph graph;  // of the program as it was exported
  try {
    graph = capture(program, samples, {});
  } catch (const Error& error) {
    return {{}, error.what()};
  }
  const auto has_loss = std::ranges::any_of(graph.outputs, [](const graph::Output& output) {
    return output.kind == graph::Output::Kind::loss;
  });
  if (!has_loss) return {{}, "the model, which gives no loss"};
  // Guesses in the order of their likelihood; a set that differs in kinds which the program does
  // not have would repeat a run.
  using enum Guess;
  const std::vector<std::set<Guess>> sets = {
      {expansion, new_tensor}, {expansion, new_tensor, range}, {expansion}, {new_tensor}, {}};
  std::set<std::set<Guess>> tried;
  std::set<Guess> met;
  bool any_captured = false;
  for (const auto& guesses : sets) {
    std::set<Guess> open;
    std::ranges::set_intersection(guesses, met, std::inserter(open, open.end()));
    if (!tried.empty() && tried.contains(open)) continue;
    Rewriter rewriter(program, samples, guesses);
    std::string ended;
    bool captured = false;
    try {
      auto twice = capture(program, 2 * samples,
                           [&](size_t index, Call& call, std::span<const IValue> values) {
                             rewriter.before(index, call, values);
                           });
      captured = true;
      if (samples > 1) {
        ended = check(graph, twice, samples);
      } else {
        // Ops skip work on a dim of size 1, so that the graph of one sample has other nodes.
        ended = check(twice, capture(rewriter.result(), 4, {}), samples);
      }
    } catch (const Error& error) {
      ended = error.what();
    }
    if (ended.empty()) return {rewriter.result(), ""};
    // An op at which the proof ends says more than sizes that do not fit.
    if (found.ended.empty() || (captured && !any_captured)) found.ended = ended;
    any_captured = any_captured || captured;
    met.insert(rewriter.met().begin(), rewriter.met().end());
    open.clear();
    std::ranges::set_intersection(guesses, met, std::inserter(open, open.end()));
    tried.insert(open);
  }
  return found;
}

}  // namespace perigee::exported
