// Text of models with a cache of keys and values, against transformers and against whole texts.
#include "tests/train/generate/support.h"
#include "train/generate/request_queue.h"

namespace perigee::train {
namespace {

TEST_CASE("greedy tokens with a cache are those of transformers' generate, in any mix of slots") {
  const auto fixtures = test::read_json("tests/train/generate/fixtures/greedy.json");
  for (const auto& [name, rows] : fixtures.items()) {
    INFO(name);
    const test::Folder folder;
    const int64_t slots = 3;  // fewer than requests: slots are refilled
    Generator generator(task_of(name, folder), {.slots = slots});
    REQUIRE(generator.uncached() == "");
    REQUIRE(generator.context() == 16);
    check_greedy(greedy_texts(generator, rows), rows);
  }
}

TEST_CASE(
    "logits with a cache equal those of the whole text, also after another text's beginning") {
  const test::Folder folder;
  const auto task = task_of("mistral", folder);
  Generator generator(task, {.slots = 2});
  const std::vector<int64_t> text = {20, 7, 7, 19, 0, 5, 11, 3, 3};
  const auto whole = generator.fill(0, text);
  // The other slot begins with the same tokens, goes on otherwise, and is then given the text.
  generator.fill(1, std::vector<int64_t>{20, 7, 7, 2, 9});
  generator.extend(std::vector<std::optional<int64_t>>{std::nullopt, 4});
  const auto again = generator.fill(1, text);
  CHECK(at::allclose(whole, again, 1e-12, 1e-12));
  // A token at a time.
  Generator other(task, {.slots = 2});
  other.fill(0, std::vector<int64_t>{text[0]});
  at::Tensor logits;
  for (size_t i = 1; i < text.size(); ++i) {
    logits = other.extend(std::vector<std::optional<int64_t>>{text[i], std::nullopt});
  }
  CHECK(at::allclose(whole, logits[0], 1e-12, 1e-12));
  CHECK(other.text(0) == text);
  CHECK(other.text(1).empty());
  // Another text gives other logits.
  CHECK_FALSE(at::allclose(whole, generator.fill(0, std::vector<int64_t>{20, 7, 8}), 1e-3, 1e-3));
}

TEST_CASE("a text beyond the context goes on after its last half") {
  const test::Folder folder;
  const auto task = task_of("llama", folder);
  Generator generator(task, {.slots = 1, .context = 8}), whole(task, {.slots = 1, .context = 8});
  std::vector<int64_t> text = {1, 2, 3}, expected;
  for (int i = 0; i < 30; ++i) {
    const auto next = whole.fill(0, text).argmax().item<int64_t>();
    expected.push_back(next);
    if (text.size() == 8) text.erase(text.begin(), text.begin() + 4);
    text.push_back(next);
  }
  const Numbers tokenizer;
  RequestQueue queue(generator, tokenizer);
  std::string got;
  int64_t drawn = 0;
  queue.add({.prompt = {1, 2, 3},
             .most = 30,
             .draw = {.temperature = 0},
             .take = [&](std::string_view piece) { got += piece; },
             .done =
                 [&](Finish finish, int64_t tokens) {
                   CHECK((finish == Finish::most));
                   drawn = tokens;
                 }});
  queue.run();
  CHECK(drawn == 30);
  CHECK(got == numbers(expected));
}

TEST_CASE("requests end at a token, at a stop string, or when they are cancelled") {
  const test::Folder folder;
  const auto rows = test::read_json("tests/train/generate/fixtures/greedy.json")["llama"];
  const auto prompt = rows[1]["prompt"].get<std::vector<int64_t>>();
  const auto greedy = rows[1]["greedy"].get<std::vector<int64_t>>();
  // The first token that has not occurred before, so that it ends the text where it stands.
  size_t place = 1;
  while (std::find(greedy.begin(), greedy.begin() + int64_t(place), greedy[place]) !=
         greedy.begin() + int64_t(place)) {
    ++place;
  }
  const std::vector<int64_t> before(greedy.begin(), greedy.begin() + int64_t(place));
  Generator generator(task_of("llama", folder), {.slots = 2});
  const Numbers tokenizer;
  const auto run = [&](TextRequest request) {
    RequestQueue queue(generator, tokenizer);
    std::string text;
    std::optional<Finish> ended;
    request.prompt = prompt;
    request.most = std::ssize(greedy);
    request.draw.temperature = 0;
    if (!request.take) {
      request.take = [&](std::string_view piece) { text += piece; };
    }
    request.done = [&](Finish finish, int64_t) { ended = finish; };
    queue.add(std::move(request));
    queue.run();
    REQUIRE(ended);
    return std::pair(*ended, text);
  };
  CHECK((run({.ends = {greedy[place]}}) == std::pair(Finish::ended, numbers(before))));
  const auto stop = fmt::format("{} ", greedy[place]);
  const auto stopped = run({.stops = {stop}});
  CHECK((stopped.first == Finish::ended));
  CHECK(numbers(greedy).starts_with(stopped.second));
  CHECK(stopped.second.find(stop) == std::string::npos);
  CHECK((run({}) == std::pair(Finish::most, numbers(greedy))));
  auto shown = greedy;
  std::erase(shown, greedy[0]);
  CHECK((run({.hidden = {greedy[0]}}) == std::pair(Finish::most, numbers(shown))));
  // Asked before the step that draws two tokens, and before the next one.
  int asked = 0;
  CHECK((run({.wanted = [&] { return ++asked < 2; }}) ==
         std::pair(Finish::cancelled, numbers({greedy[0], greedy[1]}))));
}

TEST_CASE("requests that cannot run are refused") {
  const test::Folder folder;
  Generator generator(task_of("gpt2", folder), {.slots = 1});
  const Numbers tokenizer;
  RequestQueue queue(generator, tokenizer);
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(queue.add({.prompt = {}}), Contains("at least one token"));
  CHECK_THROWS_WITH(queue.add({.prompt = {1}, .draw = {.top_p = 0}}), Contains("top_p must be"));
  CHECK_THROWS_WITH(queue.add({.prompt = {1}, .draw = {.repetition_penalty = 0}}),
                    Contains("repetition_penalty must be"));
  CHECK_THROWS_WITH(generator.fill(0, std::vector<int64_t>(17, 1)),
                    Contains("1 to 16 tokens (the model's context), but got 17"));
  // A model of more tokens than it has positions.
  CHECK_THROWS_WITH(Generator(task_of("gpt2", folder), {.context = 17}), Contains("n_positions"));
  Task gpt;
  gpt.job = Job::parse(
      "[model]\nkind = 'gpt'\nlayers = 1\nwidth = 16\nheads = 2\nvocab = 24\n"
      "[data]\nsynthetic = true\nsequence = 16\n",
      "gpt.toml");
  CHECK_THROWS_WITH(Generator(gpt, {.context = 17}), Contains("model.positions = 16), but got 17"));
}

}  // namespace
}  // namespace perigee::train
