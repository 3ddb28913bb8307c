// A rank's program run by itself, to see what its ops take: collectives do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
  // Takes random weights. Of what the program does over and over - microbatches, layers
  // (train/repeats.h) - it runs a few. `data` gives the samples that the ops see; nullptr: zeros
  // and ones. Throws Error for what cannot be run.
  Rehearsal(compile::Program program, const mesh::Mesh& mesh, std::shared_ptr<exec::Device> device,
            const job::Job& job, DataSource* data);

  // What is run.
  const compile::Program& program() const { return executor_->program(); }
  // How many of the whole program's instructions each one stands for, as Shortened has it.
  const std::vector<std::vector<double>>& stands_for() const { return stands_for_; }
  // Runs one step. Returns what it took. Throws Error as exec::Executor::run.
  const std::vector<compile::Interval>& run();
  // Returns a result of the last step: one number.
  double result(const std::string& name) const;

 private:
  void fill();

  const job::Job& job_;
  std::unique_ptr<exec::Communicator> nobody_;
  std::unique_ptr<exec::Executor> executor_;
  std::vector<std::vector<double>> stands_for_;
  exec::StepInputs inputs_;
};

}  // namespace perigee::train
