#include "exec/replay.h"

#include <algorithm>

#include "base/fail.h"
#include "base/log_format.h"
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
      if (prepared.group && prepared.group->size() > 1 &&
          !prepared.group->recordable(prepared.transfer.kind)) {
        return "exchanges tensors through the host";
      }
      return "";
    case Kind::wait:
      return "";
  }
  return "";
}

std::unique_ptr<RecordedStep> Replay::record(const Step& step,
                                             const std::vector<at::Tensor>& batches) {
  std::vector<int64_t> bytes;
  for (const auto& batch : batches) bytes.push_back(static_cast<int64_t>(batch.nbytes()));
  try {
    auto made = recorder_.prepare(bytes);
    made->record([&] { step.submit(made.get()); });
    return made;
  } catch (const Error& error) {
    if (required_) {
      fail_run("exec",
               "step {} must be recorded as a CUDA graph, but got: {}; set cluster.graphs = false",
               step.number, error.what());
    }
    log::warn("steps like step {} run without a CUDA graph, since it could not be recorded: {}",
              step.number, error.what());
    return nullptr;
  }
}

void Replay::submit(const Step& step) {
  auto& [ran, refused, recorded] = patterns_[step.runs];
  launched_ = false;
  if (ran && !refused) {
    const auto batches = step.batches();
    if (!recorded) recorded = record(step, batches);
    if (recorded) {
      for (size_t i = 0; i < batches.size(); ++i) recorded->write(i, batches[i]);
      recorded->launch({.step = step.number, .usual_nanoseconds = usual_nanoseconds_});
      launched_ = true;
      return;
    }
    refused = true;
  }
  step.submit(nullptr);
  ran = true;
}

void Replay::ended(int64_t nanoseconds) {
  if (!launched_) usual_nanoseconds_ = std::max(usual_nanoseconds_, nanoseconds);
}

}  // namespace perigee::exec
