#include "search/space/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/fail.h"
#include "schedule/description.h"
#include "search/space/submeshes.h"
#include "shard/loss/classify_loss.h"

namespace perigee::search {
namespace {

constexpr int64_t kMostChunks = 8;

// Returns the samples whose divisors are searched as microbatches: all of a small batch, else
// at most 8.
int64_t largest_micro(const Request& request) {
  if (request.pins.micro) return *request.pins.micro;
  if (request.global_batch <= 64) return request.global_batch;
  int64_t largest = 1;
  for (int64_t d = 2; d <= 8; ++d) {
    if (request.global_batch % d == 0) largest = d;
  }
  return largest;
}

// Returns the numbers of parts of a stage that are searched, beside one: few, and as many as give
// each at most one block.
std::vector<int64_t> chunks_of(int64_t stages, int64_t blocks, int64_t most_parts) {
  std::vector<int64_t> counts{2, 3, 4};
  const auto most = most_parts / stages;
  if (most > counts.back() && most <= kMostChunks && most * stages >= blocks) {
    counts.push_back(most);
  }
  return counts;
}

template <class T>
std::vector<T> options(const std::optional<T>& pin, std::vector<T> otherwise) {
  return pin ? std::vector<T>{*pin} : std::move(otherwise);
}

// Returns how many experts the graph's mixtures all divide into; 0 for none.
int64_t experts_of(const graph::Graph& graph) {
  int64_t experts = 0;
  for (const auto& node : graph.nodes) {
    if (node.op != "perigee::grouped_mm" || node.phase != graph::Phase::forward) continue;
    experts = std::gcd(experts, graph.type(node.get<graph::ValueId>("mat2", {})).shape[0]);
  }
  return experts;
}

// Returns how long the sequences are that the graph's attention is over; 0 where it has none.
int64_t sequence_of(const graph::Graph& graph) {
  const bool attends = std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return node.op == "perigee::attention";
  });
  for (const auto& input : graph.inputs) {
    const auto& shape = graph.type(input.value).shape;
    const bool samples = input.kind == graph::Input::Kind::data && input.batched;
    if (attends && samples && shape.size() > 1) return shape[1];
  }
  return 0;
}

}  // namespace

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> result;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) result.push_back(d);
  }
  return result;
}

// State of combinations().
struct Space::Made {
  LayerTables& tables;
  const CostModel& model;
  int64_t blocks;
  std::vector<Choice> choices;  // but for ZeRO levels and schedules
  std::vector<Bounded> list;
  std::string& why_not;  // the last refusal
};

Space::Space(const Request& request, const cost::Cluster& cluster)
    : request_(request),
      cluster_(cluster),
      node_(cluster.links.empty() ? 1 : cluster.links.front().ranks),
      samples_(largest_micro(request)) {
  const auto& graph = request.graph(samples_);
  const auto loss = shard::classify_loss(graph);
  splits_ = loss.kind != shard::LossKind::mixed && loss.coupling.empty();
  const auto& pins = request.pins;
  const auto experts = experts_of(graph), sequence = sequence_of(graph);
  experts_ = contexts_ = {1};
  if (pins.expert.value_or(1) > 1 && experts == 0) {
    fail("auto", "expert = {} is pinned, but the model has no mixture of experts", *pins.expert);
  }
  if (pins.context.value_or(1) > 1 && sequence == 0) {
    fail("auto", "context = {} is pinned, but the model has no attention over a sequence",
         *pins.context);
  }
  for (const auto size : divisors(request.world)) {
    if (size == 1) continue;
    if (experts > 0 && experts % size == 0 && within_node(size)) experts_.push_back(size);
    if (sequence >= kLongSequence && sequence % size == 0 && sequence / size >= kLeastPart) {
      contexts_.push_back(size);
    }
  }
  if (pins.expert) experts_ = {*pins.expert};
  if (pins.context) contexts_ = {*pins.context};
}

bool Space::within_node(int64_t ranks) const {
  return request_.world <= node_ ? ranks <= node_ : node_ % ranks == 0;
}

int64_t Space::captured() const {
  int64_t samples = most_samples();
  for (const auto size : experts_) samples = std::lcm(samples, most_samples() * size);
  return samples;
}

int64_t Space::most_samples() const {
  const bool two = samples_ == 1 && request_.global_batch % 2 == 0 && may_be_heterogeneous();
  return two ? 2 : samples_;
}

std::vector<Bounded> Space::combinations(LayerTables& tables, const CostModel& model,
                                         int64_t blocks, const std::function<bool()>& stop) {
  Made made{.tables = tables,
            .model = model,
            .blocks = std::max<int64_t>(1, blocks),
            .choices = {},
            .list = {},
            .why_not = why_not_};
  if (!request_.pins.submeshes.empty()) return {};
  const auto& pins = request_.pins;
  const auto fits = [](int64_t size, const std::optional<int64_t>& pin) {
    return !pin || *pin == size;
  };
  const auto precisions = pins.precision.empty() ? std::vector<std::string>{"none"}
                                                 : pins.precision;
  for (const auto tensor : divisors(request_.world)) {
    if (!fits(tensor, pins.tensor) || (!pins.tensor && !within_node(tensor))) continue;
    for (const auto expert : experts_) {
      if (tensor > 1 && expert > 1 && !pins.expert && !within_node(tensor * expert)) continue;
      for (const auto context : contexts_) {
        const auto inner = tensor * expert * context;
        if (request_.world % inner != 0) continue;
        for (const auto pipe : divisors(request_.world / inner)) {
          const auto data = request_.world / inner / pipe;
          if (pipe > made.blocks || !fits(pipe, pins.pipe) || !fits(data, pins.data)) continue;
          if (!has_size(pins.sizes.value_or("none"), inner * data)) continue;
          if (request_.global_batch % (expert * data) != 0) continue;
          Choice choice{.tensor = tensor,
                        .expert = expert,
                        .context = context,
                        .data = data,
                        .pipe = pipe,
                        .offload = pins.offload.value_or(false)};
          for (const auto& precision : precisions) {
            choice.precision = precision;
            add(made, choice);
          }
        }
      }
    }
  }
  if (!pins.time_limit) tables.prepare(made.choices);
  for (const auto& choice : made.choices) {
    if (!made.list.empty() && stop()) break;
    add_levels(made, choice);
  }
  return std::move(made.list);
}

namespace {

// Returns the pinned method with keep_weights, which excludes weights in parts and one copy of them
// (plan::verify), or "".
std::string method_that_keeps_weights(const Pins& pins) {
  for (const auto& method : pins.methods) {
    if (method.is_array() && method.size() > 1 && method[1].is_object() &&
        method[1].value("keep_weights", false)) {
      return method[0];
    }
  }
  return "";
}

}  // namespace

void Space::fail_none() const {
  throw Error(
      Status::infeasible, "auto",
      fmt::format(
          "a mesh of {} ranks must be possible: batch.global = {} must be a multiple of the data "
          "and expert axes, and the others must suit the model and what is pinned{}",
          request_.world, request_.global_batch,
          why_not_.empty() ? "" : fmt::format("; the last one tried: {}", why_not_)));
}

std::vector<int> Space::levels() const {
  const auto& pins = request_.pins;
  const auto kept = method_that_keeps_weights(pins);
  if (!kept.empty() && !pins.zero) return kept == "half" ? std::vector{0} : std::vector{0, 1, 2};
  const bool all_cut = std::ranges::count(pins.forbid, "replicated_parameters") > 0;
  return options<int>(pins.zero, all_cut ? std::vector<int>{3} : std::vector<int>{0, 1, 2, 3});
}

void Space::Recompute::set(Choice& choice) const {
  choice.checkpoint = checkpoint;
  choice.selective = selective;
  choice.every = every;
}

// All blocks, each second and each fourth: stages should have the same numbers of them.
std::vector<Space::Recompute> Space::recompute_options(int64_t blocks, const BlockRow& row,
                                                       bool solved) const {
  if (row.pattern.empty()) return {{}};
  const auto& pins = request_.pins;
  std::vector<Recompute> list;
  if (solved) {
    list.push_back({.checkpoint = true, .every = 0});
    if (pins.selective.value_or(true) && !row.keep.empty()) {
      list.push_back({.checkpoint = true, .selective = true});
    }
    return list;
  }
  for (const bool checkpoint : options<bool>(pins.checkpoint, {false, true})) {
    if (!checkpoint) {
      list.push_back({});
      continue;
    }
    for (const bool selective : options<bool>(pins.selective, {false, true})) {
      if (selective && row.keep.empty()) continue;
      for (const auto every : options<int64_t>(pins.every, {1, 2, 4})) {
        const bool many = every > 1 && (selective || every > blocks);
        if (many && !pins.every) continue;
        list.push_back({.checkpoint = true, .selective = selective, .every = every});
      }
    }
  }
  return list;
}

void Space::add(Made& made, Choice choice) const {
  const auto& pins = request_.pins;
  const auto share = request_.global_batch / choice.batch();
  const int axes = (choice.tensor > 1) + (choice.expert > 1) + (choice.context > 1) +
                   (choice.data > 1);
  if (axes > 1 && std::ranges::count(pins.forbid, "nd_shardings") > 0) {
    made.why_not = "[auto] nd_shardings is forbidden: a tensor is split over one axis";
    return;
  }
  const bool all_cut = std::ranges::count(pins.forbid, "replicated_parameters") > 0;
  if (all_cut && choice.parts() == 1 && choice.tensor > 1) return;  // norms are replicated
  const auto sequences = choice.tensor > 1 ? options<bool>(pins.sequence, {false, true})
                                           : std::vector<bool>{false};
  const auto attentions = options<std::string>(pins.attention, {"all_gather", "all_to_all"});
  const auto recompute_options = this->recompute_options(made.blocks, made.tables.row(),
                                                         solver_chooses());
  if (recompute_options.empty())
    made.why_not = "[auto] blocks have no products that are worth keeping";
  for (const auto micro : divisors(samples_)) {
    if (share % micro != 0 || (pins.micro && *pins.micro != micro)) continue;
    choice.micro = micro;
    choice.microbatches = share / micro;
    // Samples depend on each other: another number of microbatches is another loss.
    if (!splits_ && choice.microbatches > 1 && !pins.micro) continue;
    for (const bool sequence : sequences) {
      choice.sequence = sequence;
      for (const auto& attention : attentions) {
        if (choice.context == 1 && attention != attentions.front()) continue;
        choice.attention = choice.context > 1 ? attention : Choice().attention;
        for (const auto& recompute : recompute_options) {
          recompute.set(choice);
          made.choices.push_back(choice);
        }
      }
    }
  }
}

void Space::add_levels(Made& made, Choice choice) const {
  std::string why;
  const auto* layers = made.tables.on_ranks(choice, 0, request_.world, why);
  if (!layers) {
    made.why_not = why;
    return;
  }
  for (const int zero : choice.parts() > 1 ? levels() : std::vector<int>{0}) {
    choice.zero = zero;
    // As zero1 and zero2 decide where all ranks are on one host.
    choice.one_copy = (zero == 1 || zero == 2) && choice.precision != "half" &&
                      method_that_keeps_weights(request_.pins).empty() &&
                      request_.sharing_ranks >= request_.world;
    add_schedules(made, choice, *layers);
  }
}

// Returns whether a solver is pinned and recomputation is not.
bool Space::solver_chooses() const {
  const auto& pins = request_.pins;
  const bool whole = pins.chunks.value_or(1) == 1 &&
                     (!pins.schedule || default_chunks(*pins.schedule) == 1);
  return pins.solver && whole && !pins.checkpoint && !pins.every;
}

void Space::add_schedules(Made& made, Choice choice, const Layers& layers) const {
  const auto& pins = request_.pins;
  const auto whole = made.model.bounds().whole(choice, layers);
  const auto parts = std::ssize(pins.starts) + 1;
  if (!pins.starts.empty() && choice.pipe == 1) return;
  const auto put = [&](const std::string& schedule, int64_t chunks) {
    if (!pins.starts.empty() && parts != choice.pipe * chunks) return;
    if (chunks == 1 && made.model.rules().pins_end_without_block()) {
      made.why_not =
          "[auto] starts leaves the first or the last part without a block, but a stage of one "
          "part has one at least: pin chunks = 2 or more";
      return;
    }
    choice.schedule = schedule;
    choice.chunks = chunks;
    made.list.push_back({choice, &layers, made.model.lower_bound(choice, layers, whole)});
  };
  if (choice.pipe == 1) return put(std::string(schedule::kDefaultSchedule), 1);
  const auto exists = [&](const std::string& name, int64_t chunks) {
    return schedule_exists(name, static_cast<int>(choice.pipe),
                           static_cast<int>(choice.microbatches), static_cast<int>(chunks));
  };
  if (pins.schedule) {
    const int64_t chunks = pins.chunks.value_or(default_chunks(*pins.schedule));
    const int64_t most = chunks == 1 ? made.blocks : made.model.rules().most_parts(layers);
    if (choice.pipe * chunks > most && pins.starts.empty()) {
      made.why_not = fmt::format(
          "[auto] {} stages of {} part{} need {} blocks, or parameters before or after them, but "
          "the model has {} block{}",
          choice.pipe, chunks, chunks == 1 ? "" : "s", choice.pipe * chunks, made.blocks,
          made.blocks == 1 ? "" : "s");
      return;
    }
    if (exists(*pins.schedule, chunks)) return put(*pins.schedule, chunks);
    made.why_not = fmt::format(
        "[schedule] there is no {} of {} part{} for {} stages and {} microbatches", *pins.schedule,
        chunks, chunks == 1 ? "" : "s", choice.pipe, choice.microbatches);
    return;
  }
  for (const auto& schedule : schedule::descriptions()) {
    const auto& name = schedule.name;
    const bool several = schedule.default_chunks() > 1;
    std::vector<int64_t> counts{1};
    if (several) {
      counts = chunks_of(choice.pipe, made.blocks, made.model.rules().most_parts(layers));
    }
    for (const auto chunks : options<int64_t>(pins.chunks, counts)) {
      if (several != (chunks > 1) || !exists(name, chunks)) continue;
      if (!schedule.dominated_by.empty() && exists(schedule.dominated_by, chunks)) continue;
      // A solver chooses recomputed blocks for stages of one part only.
      const int64_t most = chunks == 1 ? made.blocks : made.model.rules().most_parts(layers);
      const bool fits = choice.pipe * chunks <= most && (chunks == 1 || choice.every != 0);
      if (fits) put(name, chunks);
    }
  }
}

}  // namespace perigee::search
