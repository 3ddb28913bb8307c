// What every rank of a job needs to compile and run its program. Rank 0 makes it; the others
// receive it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "exec/communicator.h"
#include "graph/graph.h"
#include "job/job.h"
#include "plan/plan.h"

namespace perigee::train {

struct Blueprint {
  graph::Graph training;    // loss, gradients, new buffers
  graph::Graph evaluation;  // forward pass in eval mode, same batch
  graph::Graph init;  // first values of parameters and buffers; empty: rank 0 has them in tensors
  std::map<std::string, std::string> tied;  // further names of parameters
  plan::Plan plan;
};

// Sends rank 0's blueprint to all ranks of the communicator; returns it on each. Then compares the
// plan's hash over all ranks: throws Error naming a rank that has another.
Blueprint share(Blueprint blueprint, exec::Communicator& communicator);

// The group of all ranks, for what is no part of a program.
std::shared_ptr<exec::Group> everyone(exec::Communicator& communicator);

// Sends rank 0's text to all ranks.
std::string share_text(std::string text, exec::Group& group);

// Returns rank 0's number on every rank. All ranks call it.
double share_number(double number, exec::Group& group);

// Returns the texts of all ranks in the group's order. All ranks call it.
std::vector<std::string> gather_texts(const std::string& text, exec::Group& group);

}  // namespace perigee::train
