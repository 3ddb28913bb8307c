// Tasks on the models of tests/train/hf/fixtures, and their tokenizer.
#pragma once

#include <string>
#include <vector>

#include "tests/train/hf/support.h"
#include "text/tokenizer.h"
#include "train/generate/request_queue.h"
#include "train/task/task.h"

namespace perigee::train {

// A task on a model with its weights, and texts of 16 tokens.
inline Task task_of(const std::string& name, const test::Folder& folder,
                    const std::string& dtype = "float64") {
  Task task;
  task.job = test::hf_job(test::fixture(name), dtype,
                          "weights = '" + std::filesystem::absolute(test::fixture(name)).string() +
                              "'\noutput = '" + folder.at("run") + "'\n");
  task.job.data.sequence = 16;
  task.job.data.validation = 0;
  return task;
}

// A tokenizer whose text of a token is its number and a space.
class Numbers : public text::Tokenizer {
 public:
  int64_t vocab() const override { return 24; }
  std::vector<int64_t> encode(std::string_view) const override { return {0}; }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) text += fmt::format("{} ", token);
    return text;
  }
};

inline std::string numbers(const std::vector<int64_t>& tokens) { return Numbers().decode(tokens); }

// Returns the likeliest texts after the prompts of the rows of fixtures/greedy.json.
inline std::vector<std::string> greedy_texts(Generator& generator, const nlohmann::json& rows) {
  const Numbers tokenizer;
  RequestQueue queue(generator, tokenizer);
  std::vector<std::string> texts(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    queue.add({.prompt = rows[i]["prompt"].get<std::vector<int64_t>>(),
               .most = std::ssize(rows[i]["greedy"]),
               .draw = {.temperature = 0},
               .take = [&texts, i](std::string_view text) { texts[i] += text; }});
  }
  queue.run();
  return texts;
}

// Checks texts against those of transformers' generate.
inline void check_greedy(const std::vector<std::string>& texts, const nlohmann::json& rows) {
  REQUIRE(texts.size() == rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO("prompt " << i);
    CHECK(texts[i] == numbers(rows[i]["greedy"].get<std::vector<int64_t>>()));
  }
}

}  // namespace perigee::train
