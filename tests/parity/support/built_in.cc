#include "tests/parity/support/built_in.h"

#include <algorithm>

#include "capture/models/models.h"
#include "exec/tensor.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {

Given built_in(const std::string& keys, int64_t rows, int64_t microbatches,
               const std::string& dtype, int64_t sequence) {
  const auto job = job::Job::parse(
      "name = 'test'\n[model]\ndtype = '" + dtype + "'\n" + keys +
          "\n[data]\nsynthetic = true\nsequence = " + std::to_string(sequence) +
          "\n[batch]\nglobal = 4\n[train]\nsteps = 1\n",
      "test.toml");
  const auto built = make_model(job.model, job.data.sequence);
  Batch batch, piece;
  for (const auto& field : built.batch) {
    auto shape = field.shape;
    shape.insert(shape.begin(), rows);
    auto& tensor = batch[field.name];
    tensor = field.dtype == graph::DType::int64
                 ? at::randint(0, std::max<int64_t>(field.classes, 2), shape, at::kLong)
                 : at::randn(shape, at::kDouble).to(exec::scalar_type(field.dtype));
    if (field.name == "labels") tensor.masked_fill_(at::rand(shape) > 0.8, -100);
    piece[field.name] = tensor.narrow(0, 0, rows / microbatches);
  }
  const auto captured = capture(*built.model.module, piece, built.model.forward);
  Given given{captured.graph, exec::evaluate(captured.init, {}, {.seed = 1})};
  given.inputs.insert(batch.begin(), batch.end());
  return given;
}

}  // namespace perigee::parity
