// Runs one rank's program without the other ranks, to measure its ops: collectives do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compile/program.h"
#include "compile/timeline.h"
#include "data/data.h"
#include "exec/comm/communicator.h"
#include "exec/executor.h"
#include "job/job.h"
#include "mesh/mesh.h"

namespace perigee::train {

class SoloRun {
 public:
  // Runs the program with random weights and with few of its repeated blocks
  // (train/measure/repeated_blocks.h) and microbatches. `data`: the samples; nullptr: zeros and
  // ones. Throws Error for a program that cannot be run.
  SoloRun(compile::Program program, const mesh::Mesh& mesh, std::shared_ptr<exec::Device> device,
          const job::Job& job, DataSource* data);

  // Returns the shortened program.
  const compile::Program& program() const { return executor_->program(); }
  // ShortProgram::represents of the program.
  const std::vector<std::vector<double>>& represents() const { return represents_; }
  // Runs one step and returns its timeline. Throws Error as exec::Executor::run.
  const std::vector<compile::Interval>& run();
  // Returns a scalar result of the last step.
  double result(const std::string& name) const;

 private:
  void fill();

  const job::Job& job_;
  std::unique_ptr<exec::Communicator> echo_;
  std::unique_ptr<exec::Executor> executor_;
  std::vector<std::vector<double>> represents_;
  exec::StepInputs inputs_;
};

}  // namespace perigee::train
