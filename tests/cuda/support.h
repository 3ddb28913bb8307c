// Runs one op on every device and compares with the reference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/cuda.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {

using Types = std::vector<graph::TensorType>;

// Returns the CPU, and GPU 0 if there is one. A function because the plugin must be opened first.
std::vector<std::shared_ptr<Device>> devices();

// Returns the CPU with the reference kernels.
std::shared_ptr<Device> reference_device();

// Runs the op on copies of the operands. Returns its results, then the operands afterwards.
std::vector<at::Tensor> run_on(Device& device, const std::string& name, const Named& tensors,
                               const Args& args, const Types& types, const Draw& draw);

// Checks that the op's results on every device equal the reference's.
void same_everywhere(const std::string& name, const Named& tensors, const Args& args,
                     const Types& types, double tolerance, const Draw& draw = {});

}  // namespace perigee::exec
