#include "compile/gradients/collector.h"

#include <algorithm>
#include <utility>

#include "compile/draft/layout.h"
#include "compile/gradients/reduce.h"
#include "compile/gradients/units.h"

namespace perigee::compile {
namespace {

DraftInstruction when(uint8_t runs, DraftInstruction instruction) {
  instruction.when = runs;
  return instruction;
}

}  // namespace

void add_up(std::vector<DraftInstruction>& out, const Draft& draft, ValueId self, ValueId source,
            double scale) {
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

Collector::Collector(Draft& draft, const Source& source, const Gradients& gradients,
                     Lowering& lowering)
    : draft_(draft), source_(source), gradients_(gradients), lowering_(lowering) {
  const auto& graph = source.local.graph;
  for (size_t p = 0; p < gradients.parameters.size(); ++p) {
    const auto& parameter = gradients.parameters[p];
    origins_.push_back(parameter.first());
    if (!parameter.gradient.defined()) continue;
    for (auto v : parameter.earlier) by_value_[v.index].push_back(p);
    by_value_[parameter.gradient.index].push_back(p);
    // The op that makes the gradient writes it into the bucket, also through reshapes, if it has no
    // other reader.
    auto v = parameter.first();
    const graph::Node* node = nullptr;
    while (lowering.uses(v) == 1 && graph.values[v.index].producer >= 0) {
      node = &graph.nodes[graph.values[v.index].producer];
      if (node->op != "perigee::reshape") break;
      v = std::get<graph::ValueId>(*node->find("self"));
      node = nullptr;
    }
    origins_.back() = v;
    // A summand in a low precision is cast when it is added.
    if (!node || graph.type(v).dtype != draft.value(parameter.value).type.dtype) continue;
    const ValueId target = v == parameter.first()
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

void Collector::begin(size_t section, Reductions& reductions) {
  section_ = section;
  reductions_ = &reductions;
  for (size_t b = 0; b < gradients_.buckets.size(); ++b) {
    const auto& bucket = gradients_.buckets[b];
    if (bucket.section != section || missing_[b] == 0 || !is_reduced(static_cast<int32_t>(b))) {
      continue;
    }
    graph::NodeId last_maker = reduced_at_end(static_cast<int32_t>(b)) ? Reductions::kEnd : 0;
    for (int32_t p : bucket.parameters) {
      const auto& parameter = gradients_.parameters[p];
      if (parameter.gradient.defined()) {
        last_maker = std::max(last_maker, reductions.maker(parameter.gradient));
      }
    }
    numbers_[b] = reductions.add(last_maker);
  }
}

void Collector::gradient_ready(graph::ValueId v, Instructions& out) {
  const auto found = by_value_.find(v.index);
  if (found == by_value_.end()) return;
  for (size_t p : found->second) {
    const auto& parameter = gradients_.parameters[p];
    const bool direct = lowering_.is_direct(origins_[p]);
    if (v != parameter.first()) {
      out.push_back(in_place("perigee::accumulate_",
                             {{"self", parameter.value}, {"other", lowering_.get(v)}},
                             {parameter.value}));
    } else if (!direct && reduced_each_time(parameter.bucket)) {
      out.push_back(in_place("perigee::copy_",
                             {{"self", parameter.value}, {"source", lowering_.get(v)}},
                             {parameter.value}));
    } else if (!direct) {
      add_up(out, draft_, parameter.value, lowering_.get(v), 1);
    } else if (adds_up(parameter.bucket)) {
      out.push_back(when(
          kMiddle | kLast,
          in_place("perigee::accumulate_", {{"self", parameter.value}, {"other", lowering_.get(v)}},
                   {parameter.value})));
    }
    if (v != parameter.gradient) continue;
    const int32_t b = parameter.bucket;
    if (--missing_[b] > 0 || !is_reduced(b)) continue;
    if (reduced_at_end(b)) {
      late_.push_back(b);
    } else {
      reduce(b, out);
    }
  }
  by_value_.erase(found);
}

void Collector::finish(Instructions& out) {
  const bool last = section_ + 1 == source_.sections.size();
  while (last && !by_value_.empty()) gradient_ready({by_value_.begin()->first}, out);
  for (int32_t b : std::exchange(late_, {})) reduce(b, out);
  end_scatters(out);
}

bool Collector::is_reduced(int32_t b) const {
  if (clips_first(source_)) return false;
  return gradients_.buckets[b].level > 0 || !gradients_.buckets[b].axes.empty();
}

bool Collector::reduced_at_end(int32_t b) const {
  return !source_.plan.communication.overlap && !reduced_each_time(b);
}

void Collector::reduce(int32_t b, Instructions& out) {
  reductions_->ready(
      numbers_[b], [this, b](Instructions& to) { start(b, to); }, out);
}

void Collector::start(int32_t b, Instructions& out) {
  const auto& bucket = gradients_.buckets[b];
  if (bucket.level == 0) {
    start_reduction(draft_, source_, bucket, bucket.reduce, several() ? kLast : kAlways, out);
  } else {
    scatter(b, out);
  }
}

void Collector::scatter(int32_t b, Instructions& out) {
  const auto& bucket = gradients_.buckets[b];
  Scattered started{b, bucket.part};
  const auto low = reduced_type(source_, bucket.dtype);
  if (low || (several() && reduced_each_time(b))) {
    const auto& part = draft_.value(bucket.part);
    const auto& axes = gradients_.flats[bucket.flat].unit->axes;
    started.part = draft_.add(
        {low.value_or(part.type.dtype), part.type.shape},
        part.name + (low ? " low" : " of a microbatch"),
        {Home::Kind::communication, draft_.number_of(Stream::over(axes, bucket.channel))});
  }
  started.runs = adds_up(b) ? kLast : kAlways;
  started.event = scatter_unit(draft_, source_, gradients_, bucket, started.part, started.runs,
                               out);
  // No wait where the unsharded gradients keep their memory: it would delay the following stages.
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

void Collector::end_scatters(Instructions& out) {
  for (const auto& scattered : std::exchange(scattered_, {})) end_scatter(scattered, out);
}

void Collector::end_scatter(const Scattered& scattered, Instructions& out) {
  const auto [b, part, event, runs] = scattered;
  const auto& bucket = gradients_.buckets[b];
  out.push_back(when(runs, wait_for(event)));
  if (part != bucket.part) {
    const bool low = reduced_type(source_, bucket.dtype).has_value();
    const double scale = low ? 1 / source_.plan.communication.reduce_scale : 1;
    if (reduced_each_time(b)) {
      add_up(out, draft_, bucket.part, part, scale);
    } else {
      out.push_back(when(runs, in_place("perigee::copy_",
                                        {{"self", bucket.part}, {"source", part}, {"scale", scale}},
                                        {bucket.part})));
    }
  }
  // Over the axes on which the unit is not cut.
  if (!bucket.axes.empty()) {
    start_reduction(draft_, source_, bucket, bucket.reduce, several() ? kLast : kAlways, out);
  }
}

}  // namespace perigee::compile
