#include "train/output/finite_weights.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/files.h"
#include "train/ranks/share.h"

namespace perigee::train {

std::string find_not_finite(const Snapshot& snapshot,
                            const std::function<bool(const std::string&)>& wanted) {
  for (const auto index : snapshot.not_finite) {
    const auto& part = snapshot.pieces[index].part;
    if (wanted(part.name)) return checkpoint::key_of(part);
  }
  return "";
}

bool are_weights_finite(const RankTrainer& trainer, const Snapshot& snapshot,
                        exec::Communicator& communicator, const job::Job& job, int64_t step) {
  std::set<std::string> trained;
  for (const auto& input : trainer.blueprint().training.inputs) {
    if (input.kind == graph::Input::Kind::parameter) trained.insert(input.name);
  }
  for (const auto& name : trainer.spec().frozen) trained.erase(name);
  // "w", "exp_avg:w", "copies:w" and "copies:exp_avg:w" belong to the parameter "w".
  const auto wanted = [&](const std::string& name) {
    for (size_t begin = 0;; begin = name.find(':', begin) + 1) {
      if (trained.contains(name.substr(begin))) return true;
      if (name.find(':', begin) == std::string::npos) return false;
    }
  };
  const auto mine = find_not_finite(snapshot, wanted);
  const auto all = gather_texts(mine, *everyone(communicator));
  const auto found = std::find_if(all.begin(), all.end(),
                                  [](const std::string& name) { return !name.empty(); });
  if (found == all.end()) return true;
  const auto what = fmt::format("{} of rank {} has a number that is not finite after step {}",
                                *found, found - all.begin(), step);
  if (job.train.stop_if_not_finite) {
    fail_run("checkpoint",
             "weights must be finite to be saved, but {}: this checkpoint is not written and "
             "earlier ones stay; resume with a lower optimizer.lr",
             what);
  }
  if (communicator.rank() == 0) log::warn("{}: the checkpoint is not written", what);
  return false;
}

}  // namespace perigee::train
