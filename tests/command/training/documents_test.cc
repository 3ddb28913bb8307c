// Jobs on JSON lines and conversations through the command.
#include <sys/resource.h>

#include <fstream>

#include "tests/command/job.h"
#include "tests/support/letters_tokenizer.h"

using namespace perigee::test;
using Catch::Contains;
using nlohmann::json;

namespace {

const std::string kHead =
    "[model]\nkind = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\ndtype = \"float64\"\n"
    "dropout = 0.1\n";

// A job with these keys of [data], and others, in place of the usual one.
class DocumentJob : public TrainingJob {
 public:
  explicit DocumentJob(const std::string& data, const std::string& more = "") {
    folder().write("job.toml", kHead + "[data]\nsequence = 24\n" + data +
                                   "\n[batch]\nglobal = 8\n[optimizer]\nlr = 1e-2\n"
                                   "[lr_schedule]\nkind = \"constant\"\nwarmup = 0\n" +
                                   more + "[train]\nsteps = 6\nvalidate_every = 0\noutput = \"" +
                                   output() + "\"\n[cluster]\ndevice = \"cpu\"\ntimeout = 20\n");
  }
};

std::string documents(int first, int count, const std::string& field) {
  std::string lines;
  for (int i = first; i < first + count; ++i) {
    std::string text;
    for (int k = 0; k < 5 + i * 31 % 40; ++k) text += char('a' + (i * k + k * k) % 26);
    lines += json{{field, text}, {"n", i}}.dump() + "\n";
  }
  return lines;
}

std::string conversations(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    auto messages = json::array();
    for (int turn = 0; turn <= i % 2; ++turn) {
      messages.push_back({{"role", "user"}, {"content", "add " + std::to_string(i + turn)}});
      messages.push_back({{"role", "assistant"}, {"content", std::to_string(2 * i + turn)}});
    }
    lines += json{{"messages", messages}}.dump() + "\n";
  }
  return lines;
}

// Trains the job at once on 2 ranks, with a stop after each number of steps, and on one rank.
void check_same_everywhere(const std::function<void(const TrainingJob&)>& prepare,
                           const std::string& data, const std::string& more) {
  const DocumentJob whole(data, more), parts(data, more), one(data, more);
  for (const auto* job : {&whole, &parts, &one}) prepare(*job);
  whole.good("train", "--nproc 2");
  parts.good("train", "--nproc 2 --set train.steps=1");
  parts.good("train", "--nproc 2 --set train.steps=4 --resume");
  parts.good("train", "--nproc 2 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
  one.good("train");
  check_losses(one, whole.losses());
}

int64_t peak_of_children() {  // in bytes
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  return int64_t(usage.ru_maxrss) << 10;
}

// Trains a step on JSON lines of so many bytes. Returns the peak memory of a process, in bytes.
int64_t peak_memory(int64_t bytes) {
  const DocumentJob job("jsonl = \"large.jsonl\"\nvalidation = 0");
  {
    std::ofstream file(job.folder() / "large.jsonl", std::ios::binary);
    const auto block = documents(0, 20'000, "text");
    for (int64_t written = 0; written < bytes; written += int64_t(block.size())) file << block;
  }
  const auto ran = run("train " + job.file() + " --set train.steps=2",
                       {.environment = job.how().environment, .seconds = 600});
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  return peak_of_children();
}

}  // namespace

TEST_CASE("a job on mixed JSON lines stops and resumes bit-equal on any number of ranks") {
  check_same_everywhere(
      [](const TrainingJob& job) {
        job.folder().write("a.jsonl", documents(0, 100, "text"));
        job.folder().write("b.jsonl", documents(100, 60, "body"));
        REQUIRE(std::system(("gzip " + (job.folder() / "b.jsonl")).c_str()) == 0);
      },
      "shuffle_buffer = 20\nvalidation = 0.1",
      "[[data.sources]]\nname = \"a\"\njsonl = \"a.jsonl\"\nweight = 3\n"
      "[[data.sources]]\nname = \"b\"\njsonl = \"b.jsonl.gz\"\ntemplate = \"{n}: {body}\"\n");
}

TEST_CASE("a job on conversations stops and resumes bit-equal on any number of ranks") {
  check_same_everywhere(
      [](const TrainingJob& job) {
        job.folder().write("c.jsonl", conversations(40));
        job.folder().write("chat.jinja",
                           "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                           "{% if add_generation_prompt %}<assistant>{% endif %}");
      },
      "conversations = \"c.jsonl\"\nchat_template = \"chat.jinja\"\npack = \"none\"", "");
}

TEST_CASE("the shares of sources are logged, and skipped lines are counted once") {
  const DocumentJob job("broken_lines = \"skip\"",
                        "[[data.sources]]\nname = \"a\"\njsonl = \"a.jsonl\"\nweight = 3\n"
                        "[[data.sources]]\njsonl = \"b.jsonl\"\n");
  job.folder().write("a.jsonl", documents(0, 100, "text") + "{}\n");
  job.folder().write("b.jsonl", documents(0, 100, "text"));
  const auto ran = job.good("train", "--nproc 2");
  CHECK_THAT(ran.err, Contains("samples of sources: a 36 (75.0%), source 2 12 (25.0%)"));
  const auto told = ran.err.find(
      "a.jsonl: 1 of 101 lines give no document and are left out; the "
      "first is line 101: a line must have the field \"text\"");
  REQUIRE(told != ran.err.npos);
  CHECK(ran.err.find("1 of 101 lines", told + 20) == ran.err.npos);
  CHECK_THAT(job.refused("train", "--overwrite --set data.broken_lines=error"),
             Contains("a.jsonl:101: a line must have the field \"text\" of data.template"));
}

TEST_CASE("a resumed run whose data changed is refused, and names the file") {
  const DocumentJob job("jsonl = \"*.jsonl\"");
  job.folder().write("a.jsonl", documents(0, 100, "text"));
  job.folder().write("b.jsonl", documents(0, 10, "text"));
  job.good("train", "--set train.steps=3");
  const auto metrics = read(job.output() + "/metrics.jsonl");
  job.folder().write("a.jsonl", documents(0, 101, "text"));
  CHECK_THAT(job.refused("train", "--resume"),
             Contains((job.folder() / "a.jsonl") + " had ") && Contains("or start a new run"));
  job.folder().write("a.jsonl", documents(0, 100, "text"));
  std::filesystem::remove(job.folder() / "b.jsonl");
  CHECK_THAT(job.refused("train", "--resume"), Contains((job.folder() / "b.jsonl") + " is gone"));
  CHECK(read(job.output() + "/metrics.jsonl") == metrics);
  job.folder().write("b.jsonl", documents(0, 10, "text"));
  job.good("train", "--resume");
  CHECK(job.losses().size() == 6);
}

TEST_CASE("a validation loss is the mean over all held-out labels, however they are batched") {
  const auto [data, name] = GENERATE(table<std::string, std::string>(
      {{"jsonl = \"a.jsonl\"\npack = \"none\"", "causal"},
       {"jsonl = \"a.jsonl\"\npack = \"documents\"", "packed"},
       {"conversations = \"c.jsonl\"\nchat_template = \"chat.jinja\"", "answers"}}));
  CAPTURE(name);
  const DocumentJob job(data + "\nvalidation = 0.3");
  job.folder().write("a.jsonl", documents(0, 100, "text"));
  job.folder().write("c.jsonl", conversations(60));
  job.folder().write("chat.jinja",
                     "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                     "{% if add_generation_prompt %}<assistant>{% endif %}");
  job.good("train", "--set train.steps=2 --set train.validate_every=2");
  const auto evaluate = [&](const std::string& more) {
    return json::parse(job.good("evaluate", more).out);
  };
  const auto whole = evaluate("--set train.validate_batches=1");
  const auto parts = evaluate("--nproc 2 --set train.validate_batches=4 --set batch.global=2");
  CHECK(parts["samples"] == whole["samples"]);
  CHECK(parts["tokens"] == whole["tokens"]);
  CHECK(parts["val_loss"].get<double>() == Approx(whole["val_loss"].get<double>()).epsilon(1e-9));
  CHECK(parts["bits_per_byte"].get<double>() ==
        Approx(whole["bits_per_byte"].get<double>()).epsilon(1e-9));
}

TEST_CASE("training ends early where the validation loss no longer falls, and the best is kept") {
  const std::string keys =
      " --set train.steps=60 --set train.validate_every=2 --set train.checkpoint_every=4 "
      "--set train.keep_checkpoints=1 --set train.keep_best=true "
      "--set train.early_stop_patience=3 --set optimizer.lr=0.3 ";
  const DocumentJob job("jsonl = \"a.jsonl\"\nvalidation = 0.3");
  job.folder().write("a.jsonl", documents(0, 100, "text"));
  const auto ran = job.good("train", "--nproc 2" + keys);
  std::vector<std::pair<double, int>> validations;
  for (const auto& line : job.metrics()) {
    if (line.contains("val_loss")) validations.emplace_back(line["val_loss"], line["step"]);
  }
  const int last = validations.back().second;
  CHECK(last < 60);
  CHECK(job.losses().size() == size_t(last));
  const auto best = *std::min_element(validations.begin(), validations.end());
  CHECK(best.second == last - 6);
  CHECK_THAT(ran.err, Contains("training ends after step " + std::to_string(last) + " of 60"));
  CHECK_THAT(ran.err, Contains("after step " + std::to_string(best.second)));
  CHECK(job.checkpoints() == std::vector<int>{best.second, last});
  const auto report = json::parse(job.good("evaluate", keys + "--checkpoint " + job.output() +
                                                           "/checkpoints/step-" +
                                                           std::to_string(best.second))
                                      .out);
  CHECK(report["val_loss"].get<double>() == Approx(best.first).epsilon(1e-10));
  CHECK(report["perplexity"].get<double>() == Approx(std::exp(best.first)));
  // Bytes are tokens, but for the ends of documents.
  const auto bits = report["bits_per_byte"].get<double>();
  CHECK(bits > best.first / std::log(2.0));
  CHECK(bits < 1.1 * best.first / std::log(2.0));
  // A resumed run ends at once.
  const auto metrics = read(job.output() + "/metrics.jsonl");
  CHECK_THAT(job.good("train", "--nproc 2 --resume" + keys).err, Contains("no better"));
  CHECK(read(job.output() + "/metrics.jsonl") == metrics);
  CHECK(job.losses().size() == size_t(last));
  // A stop does not change when training ends.
  const DocumentJob parts("jsonl = \"a.jsonl\"\nvalidation = 0.3");
  parts.folder().write("a.jsonl", documents(0, 100, "text"));
  parts.good("train", "--nproc 2" + keys + "--set train.steps=4");
  parts.good("train", "--nproc 2 --resume" + keys);
  CHECK(parts.losses() == job.losses());
}

TEST_CASE("memory does not grow with the size of JSON lines") {
  const auto small = peak_memory(1 << 20);
  const auto large = peak_memory(96 << 20);
  INFO("peaks " << small << " " << large);
  CHECK(large >= small);  // the largest of all children so far
  CHECK(large - small < 72 << 20);
}

TEST_CASE("1 GiB of JSON lines is trained on within 1 GiB of memory", "[.long]") {
  const auto peak = peak_memory(int64_t(1) << 30);
  WARN("peak memory: " << (peak >> 20) << " MiB");
  CHECK(peak < int64_t(1) << 30);
}

TEST_CASE("an exported BERT learns hidden tokens") {
  const DocumentJob job("");
  job.folder().write("tokenizer.json",
                     letters_tokenizer("abcdefghijklmnopqrstuvwxyz", {"[SEP]", "[MASK]"}));
  job.folder().write("a.jsonl", documents(0, 100, "text"));
  const auto model =
      std::filesystem::absolute("tests/capture/exported/fixtures/language/bert.pt2").string();
  job.folder().write("job.toml",
                     "[model]\nkind = \"exported\"\nfile = \"" + model +
                         "\"\n[data]\njsonl = \"a.jsonl\"\ntokenizer = \"tokenizer.json\"\n"
                         "objective = \"masked\"\nsequence = 8\nvalidation = 0.3\n"
                         "[batch]\nglobal = 16\n[optimizer]\nlr = 1e-2\n[train]\nsteps = 20\n"
                         "validate_every = 20\noutput = \"" +
                         job.output() + "\"\n[cluster]\ndevice = \"cpu\"\ntimeout = 20\n");
  job.good("train", "--nproc 2");
  const auto metrics = job.metrics();
  const auto losses = job.losses();
  REQUIRE(losses.size() == 20);
  CHECK(losses[0] > std::log(28.0));
  CHECK(metrics[19]["val_loss"].get<double>() < losses[0] - 0.3);
}

TEST_CASE("a classifier in Lua learns the labels of texts on any number of ranks") {
  const DocumentJob job("");
  // The label is the letter of which the text has most.
  std::string lines;
  for (int i = 0; i < 120; ++i) {
    const int label = i * 7 % 3;
    std::string text;
    for (int k = 0; k < 4 + i % 9; ++k) text += char(k % 4 == 3 ? 'd' + i % 5 : 'a' + label);
    lines += json{{"text", text}, {"label", label}}.dump() + "\n";
  }
  job.folder().write("a.jsonl", lines);
  job.folder().write("model.lua", R"(
local nn, torch = require "perigee.nn", require "perigee.torch"
local Net = nn.Module "Net"
function Net:init(o)
  self.embed = nn.Embedding(o.vocab, o.width)
  self.out = nn.Linear(o.width, o.classes)
end
return {
  options = { width = 16, classes = 3 },
  model = function(o, job) return Net({ vocab = job.data.vocab, width = o.width, classes = o.classes }) end,
  forward = function(net, batch, o)
    local x = net.embed(batch.tokens)
    local mask = batch.attention_mask:unsqueeze(-1):to(x.dtype)
    local logits = net.out((x * mask):sum(1) / mask:sum(1))
    return { loss = torch.cross_entropy_loss(logits, batch.labels), logits = logits }
  end,
}
)");
  job.folder().write(
      "job.toml",
      "[model]\nkind = \"lua\"\nfile = \"model.lua\"\ndtype = \"float64\"\n"
      "[data]\njsonl = \"a.jsonl\"\nobjective = \"classification\"\npack = \"none\"\n"
      "sequence = 16\nvalidation = 0.2\n[batch]\nglobal = 16\n[optimizer]\nlr = 5e-2\n"
      "[train]\nsteps = 40\nvalidate_every = 40\noutput = \"" +
          job.output() + "\"\n[cluster]\ndevice = \"cpu\"\ntimeout = 20\n");
  job.good("train", "");
  const auto losses = job.losses();
  REQUIRE(losses.size() == 40);
  CHECK(losses[0] > 0.8 * std::log(3.0));
  CHECK(job.metrics()[39]["val_loss"].get<double>() < 0.3);
  for (const std::string more : {"--nproc 2", "--nproc 2 --strategy fsdp --set batch.micro=4"}) {
    INFO(more);
    job.good("train", "--overwrite " + more);
    check_losses(job, losses);
  }
  // Without their labels texts cannot be learned.
  job.folder().write("a.jsonl", documents(0, 40, "text"));
  const auto ran = run("train " + job.file() + " --overwrite", job.how());
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("a.jsonl:1") && Contains("label"));
}
