// Text from a language model.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "compile/trace.h"
#include "exec/device.h"
#include "train/checkpoint.h"
#include "train/host.h"
#include "train/planning.h"

namespace perigee::train {

// Generates options.tokens tokens after the prompt, on the device, alone, and prints each as it
// comes. The model sees the last data.sequence tokens. Throws Error for a model without "tokens"
// and "logits".
void sample_text(const job::Job& job, const Source& source, const Checkpoint& checkpoint,
                 const SampleOptions& options, std::shared_ptr<exec::Device> device,
                 compile::TraceSource& traces, const std::function<void(std::string_view)>& print);

}  // namespace perigee::train
