// One op on every device, against the reference.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/cuda.h"
#include "tests/exec/support.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {

using Types = std::vector<graph::TensorType>;

// The CPU, and GPU 0 where there is one. No constant: the plugin must be opened first.
std::vector<std::shared_ptr<Device>> devices();

// The CPU, with the reference's kernels.
std::shared_ptr<Device> reference_device();

// Results of the op on copies of the operands on the device, then the operands as it left them.
std::vector<at::Tensor> run_on(Device& device, const std::string& name, const Named& tensors,
                               const Args& args, const Types& types, const Draw& draw);

// Checks that the op gives the reference's results on every device.
void same_everywhere(const std::string& name, const Named& tensors, const Args& args,
                     const Types& types, double tolerance, const Draw& draw = {});

}  // namespace perigee::exec
