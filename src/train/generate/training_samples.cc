#include "train/generate/training_samples.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "base/log_format.h"
#include "text/tokenizer.h"
#include "train/generate/decode_plan.h"
#include "train/generate/generator.h"
#include "train/generate/request_queue.h"
#include "train/task/source.h"

namespace perigee::train {
namespace {

// Likely tokens, but not always the likeliest ones: a model that learns repeats itself then.
constexpr double kTemperature = 0.8;
constexpr int64_t kTopK = 40;

}  // namespace

TrainingSamples::TrainingSamples(const Task& task, const Blueprint& blueprint,
                                 const Connection& connection, compile::TraceSource& traces,
                                 std::string file)
    : task_(task),
      blueprint_(blueprint),
      connection_(connection),
      traces_(traces),
      file_(std::move(file)) {
  require_text_model(blueprint.evaluation, task.job.model.kind);
  require_generating_plan(blueprint.plan);
  if (connection.communicator->rank() == 0) require_known_tokens();
}

void TrainingSamples::require_known_tokens() const {
  const auto& graph = blueprint_.evaluation;
  const auto* logits = graph.find_output(graph::Output::Kind::result, "logits");
  const auto vocab = graph.type(logits->value).shape.back();
  const auto tokenizer = text::make_tokenizer(task_.job.data.tokenizer);
  for (const auto& prompt : task_.job.train.samples) {
    for (const auto id : tokenizer->encode(prompt)) {
      if (id < vocab) continue;
      fail("generate",
           "the tokens of train.samples must be below the model's {}, but \"{}\" has {}: set "
           "data.tokenizer to that of the data",
           vocab, prompt, id);
    }
  }
}

void TrainingSamples::write(int64_t step) {
  const auto& train = task_.job.train;
  const auto& prompts = train.samples;
  Generator generator(task_,
                      GeneratorOptions{.slots = std::ssize(prompts), .trained = &blueprint_.plan},
                      connection_, traces_);
  if (connection_.communicator->rank() != 0) return generator.serve_commands();
  const auto tokenizer = text::make_tokenizer(task_.job.data.tokenizer);
  RequestQueue queue(generator, *tokenizer);
  std::vector<std::string> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    queue.add({.prompt = tokenizer->encode(prompts[i].empty() ? "\n" : prompts[i]),
               .most = train.sample_tokens,
               .draw = {.temperature = kTemperature,
                        .top_k = kTopK,
                        .seed = static_cast<uint64_t>(task_.job.seed) + i},
               .take = [&texts, i](std::string_view text) { texts[i] += text; }});
  }
  queue.run();
  generator.end();
  std::ofstream file(file_, std::ios::app);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const nlohmann::ordered_json line = {
        {"step", step}, {"prompt", prompts[i]}, {"text", texts[i]}};
    file << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    const auto shown = nlohmann::json(prompts[i] + texts[i])
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    log::info("a sample after step {}: {}", step, shown);
  }
  if (!file.flush()) {
    fail_run("file", "{} must be written, but: {}", file_, std::strerror(errno));
  }
}

}  // namespace perigee::train
