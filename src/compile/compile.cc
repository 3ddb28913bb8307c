#include "compile/compile.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/parallel.h"
#include "compile/rank.h"

namespace perigee::compile {

Program compile(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                int64_t rank, TraceSource& traces) {
  const Views views(graph, plan, spec);
  const auto& common = views.common(rank);
  const auto& own = views.plan(rank);
  return lower(common, localize(common, own, rank), own, spec, rank, traces);
}

std::vector<Stream> Programs::streams_of(size_t position) const {
  auto streams = of(position).streams;
  if (renamed.empty()) return streams;
  for (auto& stream : streams) {
    const auto own = renamed[position].find(stream);
    if (own != renamed[position].end()) stream = own->second;
  }
  return streams;
}

Programs compile_all(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                     TraceSource& traces) {
  const Views views(graph, plan, spec);
  auto found = find_equivalent_ranks(views);
  SharedTraces shared(traces);
  Programs all;
  std::map<int64_t, int32_t> known;
  std::vector<size_t> first;  // by program: the position of the rank that it is compiled for
  for (size_t r = 0; r < found.ranks.size(); ++r) {
    const auto [entry, added] = known.try_emplace(found.representative[r],
                                                  static_cast<int32_t>(first.size()));
    if (added) first.push_back(r);
    all.program.push_back(entry->second);
    if (found.streams.empty()) continue;
    const auto &original = found.streams[first[entry->second]], &own = found.streams[r];
    auto& renamed = all.renamed.emplace_back();
    for (size_t s = 0; s < original.size(); ++s) renamed[original[s]] = own[s];
  }
  all.programs.resize(first.size());
  in_parallel(first.size(), [&](size_t k) {
    const auto rank = found.ranks[first[k]];
    auto local = std::move(found.locals.at(found.representative[first[k]]));
    all.programs[k] = lower(views.common(rank), std::move(local), views.plan(rank), spec, rank,
                            shared);
  });
  all.ranks = std::move(found.ranks);
  return all;
}

plan::Prediction predict_memory(const Programs& programs) {
  plan::Prediction prediction;
  prediction.exact_memory = true;
  for (size_t i = 0; i < programs.ranks.size(); ++i) {
    const auto& program = programs.of(i);
    prediction.peak_bytes.push_back(program.peak_bytes);
    prediction.host_bytes.push_back(program.host_bytes);
    prediction.exact_memory = prediction.exact_memory && program.exact_memory;
  }
  const auto& host = prediction.host_bytes;
  if (std::all_of(host.begin(), host.end(), [](int64_t bytes) { return bytes == 0; })) {
    prediction.host_bytes.clear();
  }
  return prediction;
}

plan::Prediction predict_memory(const graph::Graph& graph, const plan::Plan& plan,
                                const StepSpec& spec, TraceSource& traces) {
  return predict_memory(compile_all(graph, plan, spec, traces));
}

}  // namespace perigee::compile
