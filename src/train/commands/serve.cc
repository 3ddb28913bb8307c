#include "train/commands/serve.h"

#include <chrono>
#include <thread>

#include "base/fail.h"
#include "base/log_format.h"
#include "train/serve/openai.h"
#include "train/serve/queue_service.h"
#include "train/serve/text_server.h"

namespace perigee::train {
namespace {

constexpr size_t kMoreThreads = 32;  // for idle connections, and requests that need no text

std::unique_ptr<TextServer> open_server(const ServeOptions& options) {
  return open_text_server(
      {.host = options.host,
       .port = options.port,
       .token = options.token,
       .threads = static_cast<size_t>(options.slots + options.waiting) + kMoreThreads});
}

}  // namespace

void serve(const Task& task, RankSession& session, const ServeOptions& options, const ServeIo& io) {
  check(options.sample.draw);
  const bool root = session.communicator->rank() == 0;
  std::unique_ptr<TextServer> server;
  // A port that is taken is found before the model is loaded.
  if (root) server = open_server(options);
  session.generator = std::make_unique<Generator>(
      task,
      GeneratorOptions{.checkpoint = options.sample.checkpoint,
                       .slots = options.slots,
                       .context = options.sample.context},
      session.connection, session.traces);
  if (!root) return session.generator->serve_commands();
  QueueService service(*session.generator, task.job.data.tokenizer, options);
  const auto api = make_openai_api(service, {.model = options.model,
                                             .tokens = options.sample.tokens,
                                             .seconds = options.seconds,
                                             .draw = options.sample.draw,
                                             .stops = options.sample.stops});
  io.listening(server->port());
  std::thread answers([&] { server->run(*api); });
  while (!io.ended() && service.failure().empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  service.stop();
  server->stop();
  answers.join();
  if (const auto failure = service.failure(); !failure.empty()) {
    fail_run("serve", "the model failed: {}", failure);
  }
}

}  // namespace perigee::train
