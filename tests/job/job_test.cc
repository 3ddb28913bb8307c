// Reading, completing and printing job files.
#include "job/job.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "job/keys.h"
#include "job/step_list.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using namespace perigee::job;
using perigee::test::error_of;
using perigee::test::Folder;

namespace {

using Strings = std::vector<std::string>;

Job parse(std::string_view text, const Strings& overrides = {}) {
  return Job::parse(text, "small.toml", overrides);
}

const std::string whole_job = R"(name = "gpt-small"
seed = 7
strategy = "strategies/data_parallel/ddp.lua"

[model]
kind = "gpt"
layers = 2
width = 64
heads = 2
dtype = "float64"
frozen = "embed.**"

[data]
text = ["data/*.txt", "more.txt"]
tokenizer = "bytes"
sequence = 32
validation = 0.1

[batch]
global = 8
micro = 2

[optimizer]
name = "sgd"
lr = 1
betas = [0.9, 0.99]
eps = 1e-9
weight_decay = 0
momentum = 0.5
nesterov = true
clip_norm = 0

[[optimizer.group]]
match = ["**.bias"]
weight_decay = 0.0

[[optimizer.group]]
match = "embed.*"
lr = 0.5

[lr_schedule]
kind = "wsd"
warmup = 3
min_lr = 0.25
decay = 4

[train]
steps = 12
log_every = 1
validate_every = 0
checkpoint_every = 6
keep_checkpoints = 1
output = "runs/x"

[cluster]
device = "cpu"
ranks = 2
)";

std::string write_whole_job(const Folder& folder) {
  folder.add("data/b.txt", "b");
  folder.add("data/a.txt", "a");
  folder.add("more.txt", "c");
  folder.add("strategies/data_parallel/ddp.lua", "return {}");
  return folder.add("gpt.toml", whole_job);
}

}  // namespace

TEST_CASE("the model's kind is the only required key") {
  const Job job = parse("[model]\nkind = \"gpt\"\n");
  CHECK(job.name == "small");
  CHECK(job.seed == 1234);
  CHECK(job.strategy == "auto");
  CHECK(job.model.dtype == "float32");
  CHECK(job.model.integer("layers") == 4);
  CHECK(job.model.integer("width") == 256);
  CHECK(job.model.integer("heads") == 4);
  CHECK(job.model.integer("hidden") == 1024);
  CHECK(job.model.integer("vocab") == 256);
  CHECK(job.model.integer("positions") == 256);
  CHECK(job.model.number("dropout") == 0);
  CHECK(job.model.flag("tied"));
  CHECK(job.data.synthetic);
  CHECK(job.batch.global == 32);
  CHECK(job.batch.micro == 0);
  CHECK(job.optimizer.name == "adamw");
  CHECK(job.optimizer.lr == 3e-4);
  CHECK(job.lr_schedule.kind == "cosine");
  CHECK(job.lr_schedule.warmup == 20);
  CHECK(parse("model.kind = \"gpt\"\ntrain.steps = 100").lr_schedule.warmup == 10);
  CHECK(parse("model.kind = \"gpt\"\ntrain.steps = 9000").lr_schedule.warmup == 20);
  CHECK(job.lr_schedule.min_lr == Approx(3e-5).epsilon(1e-15));
  CHECK(job.train.steps == 200);
  CHECK(job.train.output == "runs/small");
  CHECK(job.cluster.device == "");
  CHECK(job.cluster.ranks == 0);
}

TEST_CASE("every key of a job file sets its field") {
  const Folder folder;
  const Job job = Job::load(write_whole_job(folder));
  CHECK(job.name == "gpt-small");
  CHECK(job.seed == 7);
  CHECK(job.strategy == folder.at("strategies/data_parallel/ddp.lua"));
  CHECK(job.model.kind == "gpt");
  CHECK(job.model.integer("width") == 64);
  CHECK(job.model.dtype == "float64");
  CHECK(job.model.frozen == Strings{"embed.**"});
  CHECK(job.data.files ==
        Strings{folder.at("data/a.txt"), folder.at("data/b.txt"), folder.at("more.txt")});
  CHECK(job.data.sequence == 32);
  CHECK(job.data.validation == 0.1);
  CHECK(job.batch == BatchConfig{8, 2});
  CHECK(job.optimizer.name == "sgd");
  CHECK(job.optimizer.lr == 1.0);
  CHECK(job.optimizer.options.at("betas") == Value(std::vector<double>{0.9, 0.99}));
  CHECK(job.optimizer.options.at("nesterov") == Value(true));
  REQUIRE(job.optimizer.groups.size() == 2);
  CHECK(job.optimizer.groups[0] == ParameterGroup{{"**.bias"}, std::nullopt, 0.0});
  CHECK(job.optimizer.groups[1] == ParameterGroup{{"embed.*"}, 0.5, std::nullopt});
  CHECK(job.lr_schedule == LrSchedule{"wsd", 3, 0.25, 4});
  CHECK(job.train.output == "runs/x");
  CHECK(job.cluster.ranks == 2);
}

TEST_CASE("a resolved job reads back as the same job, also from another folder") {
  const Folder folder;
  const Job job = Job::load(write_whole_job(folder));
  CHECK(Job::parse(to_toml(job), "elsewhere.toml") == [&] {
    Job same = job;
    return same;
  }());
  const auto copy = folder.add("runs/x/job.toml", to_toml(job, folder.at("runs/x")));
  CHECK(to_toml(job, folder.at("runs/x")).find("\"../../data/*.txt\"") != std::string::npos);
  CHECK(Job::load(copy) == job);
  for (const auto& kind : {"gpt", "llama", "moe", "mlp", "resnet"}) {
    const Job other = parse(fmt::format("model.kind = \"{}\"", kind));
    CHECK(parse(to_toml(other)) == other);
  }
  const auto plugin = folder.add("net.so", "");
  const Job own = Job::load(folder.add("plugin.toml", R"(
[model]
kind = "plugin"
file = "net.so"
[model.options]
depth = 3
rate = 0.5
name = "a\"b"
on = true
sizes = [1, 2]
names = ["x"]
)"));
  CHECK(own.model.text("file") == plugin);
  CHECK(own.model.options.size() == 6);
  CHECK(std::get<std::vector<double>>(own.model.options.at("sizes")) == std::vector<double>{1, 2});
  CHECK(Job::load(folder.add("again.toml", to_toml(own, folder.at("")))) == own);
}

TEST_CASE("brackets in the folder of a job are no pattern of its files") {
  const Folder folder;
  const auto file = folder.add("run[1]/a.txt", "a");
  const auto job = Job::load(
      folder.add("run[1]/job.toml", "[model]\nkind = 'gpt'\n[data]\ntext = ['*.txt', 'a.txt']\n"));
  CHECK(job.data.files == Strings{file});
  const auto copy = to_toml(job, folder.at("run[1]/copy"));
  CHECK_THAT(copy, Catch::Contains("text = [\"../*.txt\", \"../a.txt\"]"));
  CHECK(Job::load(folder.add("run[1]/copy/job.toml", copy)) == job);
}

TEST_CASE("weights are expected to be complete unless initialise is set") {
  const Folder folder;
  folder.add("w.safetensors", "");
  folder.add("llama/config.json", "{}");
  const auto load = [&](const std::string& text) {
    const auto job = Job::load(folder.add("a.toml", text));
    CHECK(Job::load(folder.add("copy.toml", to_toml(job, folder.at("")))) == job);
    return job;
  };
  const std::string gpt = "[model]\nkind = 'gpt'\n[train]\n", hf = "[model]\nkind = 'hf'\n";
  CHECK(load(gpt).train.initialise);
  CHECK(!load(gpt + "weights = 'w.safetensors'").train.initialise);
  CHECK(load(gpt + "weights = 'w.safetensors'\ninitialise = true").train.initialise);
  // A folder with weights is the value of train.weights.
  const auto empty = load(hf + "folder = 'llama'");
  CHECK(empty.train.weights.empty());
  CHECK(!empty.train.initialise);
  folder.add("llama/model.safetensors", "");
  CHECK(load(hf + "folder = 'llama'").train.weights == folder.at("llama"));
  CHECK(load(hf + "folder = 'llama'\n[train]\nweights = 'w.safetensors'").train.weights ==
        folder.at("w.safetensors"));
  CHECK_THROWS_WITH(
      load(hf + "folder = 'qwen'"),
      Catch::Contains("a.toml:3:10: model.folder has a config.json, but there is no"));
  CHECK_THROWS_WITH(load(hf), Catch::Contains("model.folder is needed for the kind hf"));
}

TEST_CASE("a dialect's table is kept unchanged, with the places of its keys") {
  const auto text =
      "[model]\nkind = \"gpt\"\n[epl.pipeline]\nnum_micro_batch = 4\nstrategy = \"x's\"\n";
  const std::vector<std::string> more = {"epl.zero.level=v1"};
  const auto job = Job::parse(text, "a.toml", more);
  CHECK(job.dialect.name == "epl");
  CHECK(to_json(job.dialect).find("\"num_micro_batch\" : 4") != std::string::npos);
  CHECK(to_json(job.dialect).find("\"level\" : \"v1\"") != std::string::npos);
  CHECK(job.dialect.places.at("pipeline.strategy") == "a.toml:5:1: ");
  CHECK(job.dialect.places.at("zero.level") == "--set: ");
  CHECK(Job::parse(to_toml(job), "b.toml") == job);
  CHECK(Job::parse("[model]\nkind = \"gpt\"\n", "a.toml").dialect.name.empty());
}

TEST_CASE("a resolved job prints as the golden file") {
  CHECK(test::golden_difference("tests/job/resolved.toml",
                                to_toml(parse("model.kind = \"llama\"\nmodel.heads = 8"))) == "");
}

TEST_CASE("set changes keys before the job is checked") {
  const std::string text = "[model]\nkind = \"gpt\"\nwidth = 100\n[batch]\nglobal = 6\nmicro = 4\n";
  const Job job = parse(text, {"batch.micro=3", "name=abc", "optimizer.lr=1e-2", "model.width=8",
                               "data.synthetic=true", "optimizer.betas=[0.5, 0.6]",
                               "optimizer.group=[{match=\"a\", lr=1}]", "strategy=ddp"});
  CHECK(job.batch.micro == 3);
  CHECK(job.name == "abc");
  CHECK(job.optimizer.lr == 1e-2);
  CHECK(job.lr_schedule.min_lr == 1e-3);
  CHECK(job.model.integer("hidden") == 32);
  CHECK(job.optimizer.options.at("betas") == Value(std::vector<double>{0.5, 0.6}));
  CHECK(job.optimizer.groups.size() == 1);
  CHECK(job.strategy == "ddp");
  CHECK(parse("model.kind=\"gpt\"", {"model.kind=mlp", "model.inputs=3"}).model.integer("inputs") ==
        3);
  CHECK(parse("model.kind=\"gpt\"", {"name=\"a b\""}).name == "a b");
  for (const std::string typed :
       {"0x10", "1_000", "007", "12345e7", "1.50", "2024-01-01", "true"}) {
    CHECK(parse("model.kind=\"gpt\"", {"name=" + typed}).name == typed);
    CHECK(parse("model.kind=\"gpt\"", {"model.frozen=" + typed}).model.frozen == Strings{typed});
  }
  CHECK(parse("model.kind=\"gpt\"", {"name=a\nseed=5"}).seed == 1234);
  CHECK(parse("model.kind=\"gpt\"", {"name=1\nseed=5"}).seed == 1234);
}

TEST_CASE("set changes one key of a job built in code") {
  Job job;
  job.model.kind = "mlp";
  job.set("model.width=12");
  job.set("train.steps=5");
  job.complete();
  CHECK(job.name == "job");
  CHECK(job.model.integer("width") == 12);
  CHECK(job.lr_schedule.warmup == 0);
  const Job before = job;
  CHECK_THROWS_WITH(job.set("model.width=0"), "[job] --set: model.width is at least 1, but got 0");
  CHECK_THROWS_WITH(job.set("model.wdth=2"),
                    "[job] --set: [model] has no key \"wdth\", did you mean \"width\"?");
  CHECK(job == before);
  job.set("model.kind=resnet");
  job.complete();
  CHECK(job.model.integer("depth") == 18);
  CHECK_THROWS_WITH(job.model.integer("inputs"),
                    "[job] the model kind \"resnet\" has no such key, but got \"inputs\"");
  job.model.values["colour"] = true;
  CHECK_THROWS_WITH(job.complete(), "[job] resnet has no key \"colour\"");
}

TEST_CASE("graphs are true, false or auto, with or without quotes where TOML allows it") {
  const auto graphs_of = [](const std::string& value) {
    return parse("[model]\nkind = \"gpt\"\n[cluster]\ngraphs = " + value + "\n");
  };
  CHECK(parse("[model]\nkind = \"gpt\"\n").cluster.graphs == "false");
  CHECK(graphs_of("true").cluster.graphs == "true");
  CHECK(graphs_of("\"true\"").cluster.graphs == "true");
  CHECK(graphs_of("\"auto\"").cluster.graphs == "auto");
  CHECK_THAT(to_toml(graphs_of("true")), Catch::Contains("\ngraphs = \"true\"\n"));
  CHECK_THAT(to_toml(graphs_of("\"auto\"")), Catch::Contains("\ngraphs = \"auto\"\n"));
  CHECK(parse(to_toml(graphs_of("true"))).cluster.graphs == "true");
  CHECK_THROWS_WITH(graphs_of("\"on\""),
                    Catch::Contains("is one of auto, true, false, but got \"on\""));
  CHECK_THROWS_WITH(graphs_of("3"), Catch::Contains("cluster.graphs is a string, but got 3"));
}

TEST_CASE("a resumed run may change training, cluster, strategy, rates and schedules") {
  const std::string text = "[model]\nkind = \"gpt\"\n";
  const Job before = parse(text);
  const auto changed = [&](const Strings& overrides) {
    return changed_keys(before, parse(text, overrides));
  };
  CHECK(changed({"train.steps=9", "cluster.ranks=4", "strategy=ddp", "name=other"}) == Strings{});
  CHECK(changed({"seed=1", "model.layers=2", "data.sequence=64", "batch.global=8",
                 "optimizer.lr=1.0"}) ==
        Strings{"seed: 1234 became 1", "model.layers: 4 became 2", "model.positions: 256 became 64",
                "data.sequence: 256 became 64", "batch.global: 32 became 8"});
  CHECK(changed({"train.forward_only=true"}) == Strings{"train.forward_only: false became true"});
  const auto adjusted = [&](const Strings& overrides) {
    const auto now = parse(text, overrides);
    CHECK(changed_keys(before, now) == Strings{});
    return adjusted_keys(before, now);
  };
  CHECK(adjusted({"train.log_every=9", "cluster.ranks=4"}) == Strings{});
  CHECK(adjusted({"optimizer.lr=1.0", "lr_schedule.min_lr=0.5", "optimizer.clip_norm=2.0"}) ==
        Strings{"optimizer.lr: 0.0003 became 1.0", "optimizer.clip_norm: 1.0 became 2.0",
                "lr_schedule.min_lr: 2.9999999999999997e-05 became 0.5"});
  const auto grouped = parse(text, {"optimizer.group=[{match=\"a\", lr=0.5}]"});
  const auto slower = parse(text, {"optimizer.group=[{match=\"a\", lr=0.25, weight_decay=0.5}]"});
  CHECK(changed_keys(grouped, slower) == Strings{});
  CHECK(adjusted_keys(grouped, slower) ==
        Strings{"lr of optimizer.group 1: 0.5 became 0.25",
                "weight_decay of optimizer.group 1: the optimizer's became 0.5"});
  CHECK(changed_keys(grouped, parse(text, {"optimizer.group=[{match=\"b\", lr=0.5}]"})) ==
        Strings{"optimizer.group changed"});
  CHECK(changed({"optimizer.group=[{match=\"a\"}]"}) == Strings{"optimizer.group changed"});
  CHECK(changed({"model.kind=llama"})[0] == "model.kind: \"gpt\" became \"llama\"");
  const Folder folder;
  folder.add("a.txt", "");
  const auto in_folder = Job::load(folder.add("j.toml", text + "[data]\ntext = \"a.txt\"\n"));
  const auto copied = Job::load(folder.add("runs/job.toml", to_toml(in_folder, folder.at("runs"))));
  CHECK(changed_keys(in_folder, copied) == Strings{});
  CHECK(changed_keys(before, in_folder).at(0).starts_with("data.text: [] became"));
  // Keys that one of the jobs leaves out.
  CHECK(changed({"data.end_of_text=\"a\""}) == Strings{"data.end_of_text: nothing became \"a\""});
  CHECK(changed_keys(parse(text, {"data.end_of_text=\"a\""}), before) ==
        Strings{"data.end_of_text: \"a\" became nothing"});
  CHECK(adjusted_keys(before, parse(text, {"weight_decay_schedule.start=0.5"})) ==
        Strings{"weight_decay_schedule.start: nothing became 0.5"});
}

TEST_CASE("a list of steps has numbers and ranges") {
  CHECK(parse_steps("").empty());
  CHECK(parse_steps("12, 40-45") == std::vector<StepRange>{{12, 12}, {40, 45}});
  const auto steps = parse_steps("3,5-6");
  for (int64_t step = 1; step < 9; ++step) {
    CHECK(contains(steps, step) == (step == 3 || step == 5 || step == 6));
  }
  for (const std::string wrong : {"0", "a", "3,", ",3", "5-3", "-4", "1-", "3 4"}) {
    CHECK_THROWS_WITH(
        parse_steps(wrong),
        "[job] train.skip_steps lists steps from 1, \"12, 40-45\", but got \"" + wrong + "\"");
  }
}

TEST_CASE("keys of bad steps that contradict each other are refused") {
  const auto refused = [](const Strings& overrides) {
    return error_of([&] { parse("[model]\nkind = \"gpt\"\n", overrides); });
  };
  CHECK_THAT(refused({"train.skip_steps=x"}), Catch::Contains("train.skip_steps lists steps"));
  CHECK_THAT(refused({"train.on_spike=skip", "train.spike_loss=3.0"}),
             Catch::Contains("train.skip_bad_steps steps in a row, but that is 0"));
  CHECK_THAT(refused({"train.on_spike=stop"}),
             Catch::Contains("needs train.spike_loss or train.spike_norm above 0"));
}

TEST_CASE("a key without effect in its job is a warning with its place and condition") {
  const auto warnings = [](std::string_view text, const Strings& overrides = {}) {
    return parse("model.kind = \"gpt\"\n" + std::string(text), overrides).warnings.sentences;
  };
  CHECK(warnings("optimizer.momentum = 0.8\nlr_schedule.decay = 9") ==
        Strings{"small.toml:2:22: optimizer.momentum has no effect: it needs optimizer.name to be "
                "one of sgd, rmsprop, muon",
                "small.toml:3:21: lr_schedule.decay has no effect: it needs lr_schedule.kind = "
                "\"wsd\""});
  CHECK(warnings("optimizer.momentum = 0.8", {"optimizer.name=sgd"}).empty());
  CHECK(warnings("optimizer.betas = [0.8, 0.9]\noptimizer.name = \"muon\"").empty());  // AdamW's
  CHECK(warnings("", {"train.sample_tokens=9"}) ==
        Strings{"--set: train.sample_tokens has no effect: it needs train.samples"});
  CHECK(warnings("train.sample_tokens = 9\ntrain.samples = \"a\"").empty());
  CHECK(warnings("weight_decay_schedule.steps = 9").size() == 1);
  CHECK(warnings("weight_decay_schedule.steps = 9\nweight_decay_schedule.start = 0.1").empty());
  CHECK(warnings("data.template = \"{a}\"\ndata.broken_lines = \"skip\"").size() == 2);
  const std::string file =
      "model.kind = \"plugin\"\nmodel.file = \"README.md\"\nmodel.dtype = \"float64\"\n";
  CHECK(parse(file).warnings.sentences.empty());  // synthetic data
  CHECK_THAT(parse(file + "data.tensors = \"README.md\"").warnings.sentences.at(0),
             Catch::Contains("3:15: model.dtype has no effect: it needs a model kind whose"));

  // Defaults have none, and neither has the file that a run keeps.
  for (const auto* kind : {"constant", "linear", "wsd"}) {
    const auto job = parse("model.kind = \"gpt\"", {fmt::format("lr_schedule.kind={}", kind)});
    CHECK(parse(to_toml(job, "")).warnings.sentences == Strings{});
  }
}

TEST_CASE("the reference page is generated from the table") {
  CHECK(test::golden_difference("runtime/job.md", reference()) == "");
}

TEST_CASE("every row of the table of keys is consistent") {
  for (const auto& key : keys()) {
    INFO(key.path());
    CHECK(!key.about.empty());
    // A key without a field is a value of some model kinds or an attribute of optimizers.
    if (key.field == nullptr) {
      CHECK(key.kinds.empty() == (key.table == "optimizer"));
    } else {
      CHECK(key.kinds.empty());
    }
    Job job;
    ListEntry entry;
    const Ref initial = ref(key, job, entry);
    CHECK(is_initial(key, job, entry));
    if (key.otherwise.empty()) CHECK_NOTHROW(check(key, initial, ""));
    for (const auto& kind : key.kinds) CHECK(find_key("model", key.name, kind) == &key);
  }
}

TEST_CASE("a job with a Hugging Face folder has the folder's tokenizer unless it names another") {
  const Folder folder;
  folder.add("model/config.json", "{}");
  const auto tokenizer = [&](const std::string& data) {
    const auto text = "[model]\nkind = \"hf\"\nfolder = \"model\"\n[data]\n" + data;
    return Job::parse(text, folder.at("a.toml")).data.tokenizer;
  };
  CHECK(tokenizer("") == "bytes");
  const auto own = folder.add("model/tokenizer.json", "{}");
  CHECK(tokenizer("") == own);
  CHECK(tokenizer("tokenizer = \"bytes\"\n") == "bytes");
  folder.add("other.model", "");
  CHECK(tokenizer("tokenizer = \"other.model\"\n") == folder.at("other.model"));
}

TEST_CASE("a Hugging Face folder whose weights are pickled is a warning") {
  const Folder folder;
  folder.add("model/config.json", "{}");
  const auto warnings = [&] {
    return Job::parse("[model]\nkind = \"hf\"\nfolder = \"model\"\n", folder.at("a.toml"))
        .warnings.sentences;
  };
  CHECK(warnings().empty());
  const auto pickled = folder.add("model/pytorch_model.bin", "");
  REQUIRE(warnings().size() == 1);
  CHECK_THAT(warnings()[0], Catch::Contains("a.toml:3:10: " + pickled +
                                            " is not read: save the "
                                            "model as safetensors"));
  folder.add("model/model.safetensors", "");
  CHECK(warnings().empty());
}
