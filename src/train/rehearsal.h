// A rank's program run by itself, to see what its ops take: collectives do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compile/program.h"
#include "compile/timeline.h"
#include "exec/communicator.h"
#include "exec/executor.h"
#include "job/job.h"
#include "mesh/mesh.h"
#include "train/data.h"

namespace perigee::train {

class Rehearsal {
 public:
  // Takes random weights. Of what the program does over and over - microbatches, layers - it runs a
  // few. `data` gives the samples that the ops see; nullptr: zeros and ones. Throws Error for what
  // cannot be run.
  Rehearsal(compile::Program program, const mesh::Mesh& mesh, std::shared_ptr<exec::Device> device,
            const job::Job& job, DataSource* data);

  // What is run.
  const compile::Program& program() const { return executor_->program(); }
  // Runs one step. Returns what it took. Throws Error as exec::Executor::run.
  const std::vector<compile::Interval>& run();

 private:
  void fill();

  const job::Job& job_;
  std::unique_ptr<exec::Communicator> nobody_;
  std::unique_ptr<exec::Executor> executor_;
  exec::StepInputs inputs_;
};

}  // namespace perigee::train
