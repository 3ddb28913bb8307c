#include "exec/replay.h"

#include <algorithm>

#include "base/fail.h"
#include "exec/ops/host_reads.h"

namespace perigee::exec {

std::string unrecordable(const Prepared& prepared, const Op& op) {
  using Kind = compile::Instruction::Kind;
  switch (prepared.source->kind) {
    case Kind::op:
      return reads_on_host(op) ? "reads numbers on the host" : "";
    case Kind::load:
      return prepared.target.is_contiguous() ? "" : "loads a tensor that is not contiguous";
    case Kind::collective:
      if (prepared.rows) return "exchanges as many rows as the host reads";
      if (prepared.transfer.kind == Collective::Kind::barrier) return "waits on the host";
      if (prepared.group && prepared.group->size() > 1 && !prepared.group->recordable()) {
        return "exchanges tensors through the host";
      }
      return "";
    case Kind::wait:
      return "";
  }
  return "";
}

void Replay::submit(const Step& step) {
  auto& [ran, recorded] = patterns_[step.runs];
  launched_ = ran;
  if (!ran) {
    step.submit(nullptr);
    ran = true;
    return;
  }
  const auto batches = step.batches();
  if (!recorded) {
    std::vector<int64_t> bytes;
    for (const auto& batch : batches) bytes.push_back(static_cast<int64_t>(batch.nbytes()));
    try {
      auto made = recorder_.prepare(bytes);
      made->record([&] { step.submit(made.get()); });
      recorded = std::move(made);
    } catch (const Error& error) {
      fail_run("exec",
               "step {} must be recorded as a CUDA graph, but got: {}; set cluster.graphs = false",
               step.number, error.what());
    }
  }
  for (size_t i = 0; i < batches.size(); ++i) recorded->write(i, batches[i]);
  recorded->launch({.step = step.number, .usual_nanoseconds = usual_nanoseconds_});
}

void Replay::ended(int64_t nanoseconds) {
  if (!launched_) usual_nanoseconds_ = std::max(usual_nanoseconds_, nanoseconds);
}

}  // namespace perigee::exec
