#include "compile/compile.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "compile/rank.h"

namespace perigee::compile {

Program compile(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                int64_t rank, TraceSource& traces) {
  const Common common = prepare(graph, plan, spec);
  return lower(common, localize(common, plan, rank), plan, spec, rank, traces);
}

plan::Prediction predict_memory(const graph::Graph& graph, const plan::Plan& plan,
                                const StepSpec& spec, TraceSource& traces) {
  const Common common = prepare(graph, plan, spec);
  plan::Prediction prediction;
  prediction.exact_memory = true;
  struct Known {
    int64_t bytes = 0, host = 0;
    bool exact = true;
  };
  std::map<int64_t, Known> known;
  const auto [ranks, like] = alike(common, plan);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto [entry, added] = known.try_emplace(like[r]);
    if (added) {
      const auto program =
          lower(common, localize(common, plan, ranks[r]), plan, spec, ranks[r], traces);
      entry->second = {program.peak_bytes, program.host_bytes, program.exact_memory};
    }
    prediction.peak_bytes.push_back(entry->second.bytes);
    prediction.host_bytes.push_back(entry->second.host);
    prediction.exact_memory = prediction.exact_memory && entry->second.exact;
  }
  const auto& host = prediction.host_bytes;
  if (std::all_of(host.begin(), host.end(), [](int64_t bytes) { return bytes == 0; })) {
    prediction.host_bytes.clear();
  }
  return prediction;
}

}  // namespace perigee::compile
