// Text of models whose weights and caches are on several ranks, against one rank and transformers.
#include <chrono>
#include <thread>

#include "base/files/file.h"
#include "exec/comm/threads.h"
#include "tests/train/generate/support.h"
#include "train/generate/decode_graph.h"
#include "train/generate/rank_command.h"
#include "train/generate/request_queue.h"
#include "train/ranks/share.h"
#include "train/run/rank_session.h"

namespace perigee::train {
namespace {

using Catch::Matchers::Contains;

// Returns the task on several ranks that are threads.
Task task_on_ranks(const std::string& name, const test::Folder& folder, const std::string& strategy,
                   int64_t ranks) {
  auto task = task_of(name, folder);
  task.job.cluster.in_process = true;
  task.job.cluster.timeout = 30;
  task.strategy = strategy;
  task.strategy_given = true;
  task.runtime_folder = "runtime";
  task.world = ranks;
  task.world_given = true;
  return task;
}

// Runs `use` on rank 0's generator of ranks that are threads.
void on_ranks(const Task& task, const GeneratorOptions& options,
              const std::function<void(Generator&)>& use) {
  run_session(task, {.world = task.world, .local_world = task.world}, [&](RankSession& session) {
    session.generator = std::make_unique<Generator>(task, options, session.connection,
                                                    session.traces);
    auto& generator = *session.generator;
    if (session.communicator->rank() != 0) {
      generator.serve_commands();
    } else {
      use(generator);
      generator.end();
    }
    return std::string();
  });
}

const std::string kTensor = "strategies/parallel/tensor_parallel.lua";
const std::string kFsdp = "strategies/data_parallel/fsdp.lua";

struct Layout {
  std::string strategy;
  int64_t ranks;
};

// Checks greedy tokens of the fixtures of these models on the ranks.
void check_layout(const Layout& layout, const std::vector<std::string>& models) {
  const auto fixtures = test::read_json("tests/train/generate/fixtures/greedy.json");
  for (const auto& name : models) {
    INFO(name << " by " << layout.strategy);
    const auto& rows = fixtures[name];
    const test::Folder folder;
    std::vector<std::string> texts;
    on_ranks(task_on_ranks(name, folder, layout.strategy, layout.ranks), {.slots = 3},
             [&](Generator& generator) { texts = greedy_texts(generator, rows); });
    check_greedy(texts, rows);
  }
}

TEST_CASE("greedy tokens on tensor ranks are those of transformers' generate") {
  check_layout({kTensor, 2}, {"llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "mixtral"});
}

TEST_CASE("greedy tokens on fsdp ranks are those of transformers' generate") {
  check_layout({kFsdp, 2}, {"llama", "gpt2", "mixtral"});
}

TEST_CASE("greedy tokens on data and tensor ranks are those of transformers' generate") {
  check_layout({kTensor, 4}, {"llama", "qwen3", "gpt2"});
}

// Returns the logits after a text, and after it and some more tokens.
std::vector<at::Tensor> logits_of(Generator& generator) {
  std::vector<at::Tensor> all;
  all.push_back(generator.fill(1, std::vector<int64_t>{20, 7, 7, 19, 0}));
  generator.fill(0, std::vector<int64_t>{3});
  for (const int64_t token : {5, 11, 3}) {
    const std::vector<std::optional<int64_t>> added = {token + 1, token};
    all.push_back(generator.extend(added).clone());
  }
  return all;
}

TEST_CASE("logits on several ranks equal those of one rank") {
  const auto layout = GENERATE(Layout{kTensor, 2}, Layout{kFsdp, 2}, Layout{kTensor, 4});
  INFO(layout.strategy << " on " << layout.ranks);
  const test::Folder folder;
  const auto task = task_on_ranks("llama", folder, layout.strategy, layout.ranks);
  Generator single(task, {.slots = 2});
  const auto wanted = logits_of(single);
  std::vector<at::Tensor> got;
  on_ranks(task, {.slots = 2}, [&](Generator& generator) {
    got = logits_of(generator);
    // As long as a user may think.
    bool waited = false;
    generator.wait([&] { waited = true; });
    CHECK(waited);
    // A call that is refused reaches no other rank.
    CHECK_THROWS_WITH(generator.fill(0, std::vector<int64_t>(17, 1)), Contains("1 to 16 tokens"));
    CHECK_THROWS_WITH(generator.fill(2, std::vector<int64_t>{1}), Contains("below 2, but got 2"));
    CHECK(generator.text(1) == std::vector<int64_t>{20, 7, 7, 19, 0, 5, 11, 3});
  });
  REQUIRE(got.size() == wanted.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(at::allclose(got[i], wanted[i], 1e-10, 1e-10));
  // The tolerance tells texts that differ in one token.
  CHECK_FALSE(at::allclose(got[1], got[2], 1e-3, 1e-3));
}

TEST_CASE("a wrong sharding rule changes the logits on several ranks") {
  const test::Folder folder;
  const auto script = folder.at("wrong.lua");
  // All ranks add the residual to their partial sums.
  std::ofstream(script) << "require('perigee.shard').rule('aten::add.Tensor', 'd*, d* -> d*; alpha "
                           "linear(0) linear(1)')\n"
                        << read_file(kTensor, "strategy");
  const auto task = task_on_ranks("llama", folder, script, 2);
  Generator single(task, {.slots = 2});
  std::vector<at::Tensor> got;
  on_ranks(task, {.slots = 2}, [&](Generator& generator) { got = logits_of(generator); });
  CHECK_FALSE(at::allclose(got[0], logits_of(single)[0], 1e-3, 1e-3));
}

TEST_CASE("caches are on the ranks of their heads, and units of level 3 are kept") {
  const test::Folder folder;
  const auto model = [&](const std::string& strategy, int64_t ranks) {
    return open_decode_model(task_on_ranks("llama", folder, strategy, ranks), {.slots = 2}, ranks);
  };
  const auto tensor = model(kTensor, 4);
  int caches = 0;
  for (const auto& input : tensor.extending.inputs) {
    if (!is_cache(input.name)) continue;
    ++caches;
    CHECK(mesh::to_string(tensor.plan.placements.at(input.name)) == "S1,R");
  }
  CHECK(caches > 0);
  CHECK(tensor.plan.units.empty());
  const auto fsdp = model(kFsdp, 2);
  CHECK_FALSE(fsdp.plan.units.empty());
  for (const auto& unit : fsdp.plan.units) CHECK(unit.level == 3);
}

TEST_CASE("rank 0's commands reach all ranks whole, however many tokens they have") {
  auto communicators = exec::thread_communicators(3, {std::chrono::seconds(20)});
  std::vector<RankCommand> sent;
  for (const int64_t count : {0, 1, 64, 65, 1000}) {
    RankCommand command{RankCommand::Kind::fill, count + 7};
    for (int64_t i = 0; i < count; ++i) command.tokens.push_back(i * i - 1);
    sent.push_back(std::move(command));
  }
  sent.push_back({RankCommand::Kind::end});
  std::vector<std::vector<RankCommand>> got(3);
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < got.size(); ++rank) {
    ranks.emplace_back([&, rank] {
      const auto group = everyone(*communicators[rank]);
      for (const auto& command : sent) {
        got[rank].push_back(share(rank == 0 ? command : RankCommand{}, *group));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& commands : got) {
    for (size_t i = 0; i < sent.size(); ++i) {
      CHECK((commands[i].kind == sent[i].kind));
      CHECK(commands[i].slot == sent[i].slot);
      CHECK(commands[i].tokens == sent[i].tokens);
    }
  }
}

TEST_CASE("text with a pipeline is refused") {
  const test::Folder folder;
  const auto task = task_on_ranks("llama", folder, "strategies/parallel/pipeline_parallel.lua", 2);
  CHECK_THROWS_WITH(
      on_ranks(task, {.slots = 1}, [](Generator&) {}),
      Contains("text is not generated with a pipeline, but the plan has 2 stages: use "
               "tensor_parallel or fsdp"));
}

}  // namespace
}  // namespace perigee::train
