#include "train/commands/sample.h"

#include "base/log_format.h"
#include "text/tokenizer.h"
#include "train/generate/generator.h"
#include "train/generate/request_queue.h"

namespace perigee::train {

void sample_text(const Task& task, RankSession& session, const SampleOptions& options,
                 const std::function<void(std::string_view)>& print) {
  check(options.draw);
  auto prompts = options.prompts;
  if (prompts.empty()) prompts.emplace_back();
  session.generator = std::make_unique<Generator>(task,
                                                  GeneratorOptions{.checkpoint = options.checkpoint,
                                                                   .slots = std::ssize(prompts),
                                                                   .context = options.context},
                                                  session.connection, session.traces);
  auto& generator = *session.generator;
  if (session.communicator->rank() != 0) return generator.serve_commands();
  if (!generator.uncached().empty()) {
    log::info("every token costs as much as the whole text, since the model {}",
              generator.uncached());
  }
  const auto tokenizer = text::make_tokenizer(task.job.data.tokenizer);
  RequestQueue queue(generator, *tokenizer);
  const bool streams = prompts.size() == 1;
  // Who reads the output may pause.
  const auto show = [&](std::string_view text) { generator.wait([&] { print(text); }); };
  std::vector<std::string> texts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    texts[i] = prompts[i];
    if (streams) show(prompts[i]);
    TextRequest request{.prompt = tokenizer->encode(prompts[i].empty() ? "\n" : prompts[i]),
                        .most = options.tokens,
                        .draw = options.draw,
                        .stops = options.stops};
    request.draw.seed += i;
    request.take = [&, i](std::string_view text) {
      if (streams) show(text);
      texts[i] += text;
    };
    queue.add(std::move(request));
  }
  queue.run();
  generator.end();
  if (streams) return print("\n");
  for (size_t i = 0; i < texts.size(); ++i) print(fmt::format("--- {}\n{}\n", i + 1, texts[i]));
}

}  // namespace perigee::train
