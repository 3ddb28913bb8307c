// The recorded steps of a program. Which runs of a program's order a step has depends on its number
// (compile::Run::every): each such pattern is recorded by itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "exec/prepared.h"
#include "exec/recorder.h"

namespace perigee::exec {

// Returns why an instruction cannot be part of a recorded step, "reads numbers on the host", or "".
std::string unrecordable(const Prepared& prepared, const Op& op);

class Replay {
 public:
  // `required`: a pattern that cannot be recorded is an error; otherwise its steps run unrecorded,
  // and the log says why.
  Replay(Recorder& recorder, bool required) : recorder_(recorder), required_(required) {}

  struct Step {
    int64_t number = 1;
    std::vector<bool> runs;  // of the program's order: whether the step has it
    // Returns the batches of the step's loads, in the order in which they are submitted.
    std::function<std::vector<at::Tensor>()> batches;
    // Submits the step's work: to be recorded, or (nullptr) to run.
    std::function<void(RecordedStep*)> submit;
  };

  // Submits the work of a step. The first step of a pattern runs unrecorded, so that libraries load
  // kernels and allocate workspaces; the second one is recorded and launched, and later ones are
  // launched. Throws Error where it cannot be recorded but must be, with a remedy.
  void submit(const Step& step);
  // The last submitted step has ended after so many nanoseconds.
  void ended(int64_t nanoseconds);

 private:
  struct Pattern {
    bool ran = false;
    bool refused = false;  // could not be recorded
    std::unique_ptr<RecordedStep> recorded;
  };

  // Returns the recorded step, or nullptr where it cannot be recorded.
  std::unique_ptr<RecordedStep> record(const Step& step, const std::vector<at::Tensor>& batches);

  Recorder& recorder_;
  bool required_;
  std::map<std::vector<bool>, Pattern> patterns_;
  bool launched_ = false;          // the last step
  int64_t usual_nanoseconds_ = 0;  // the most of a step that was not launched
};

}  // namespace perigee::exec
