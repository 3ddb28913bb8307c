// Errors of invalid job files.
#include "base/error.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "job/job.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using namespace perigee::job;
using perigee::test::Folder;

namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {},
                     const std::string& file = "a.toml") {
  try {
    Job::parse(text, file, overrides);
  } catch (const Error& e) {
    CHECK(e.status() == Status::invalid);
    return e.what();
  }
  return "no error";
}

// Returns the error of a job with a GPT and further lines from line 2 on.
std::string gpt(const std::string& lines) { return error_of("model.kind = \"gpt\"\n" + lines); }

}  // namespace

TEST_CASE("a missing file or invalid TOML is an error") {
  CHECK_THROWS_WITH(Job::load("no/such.toml"),
                    "[job] cannot read \"no/such.toml\": No such file or directory");
  CHECK_THROWS_WITH(Job::load("tests"), "[job] cannot read \"tests\": Is a directory");
  CHECK(error_of("a = \n").substr(0, 17) == "[job] a.toml:1:5:");
  CHECK_THROWS_WITH(
      Job::parse("", "a.toml").require_model("a.toml"),
      "[job] a.toml: model.kind is needed (one of gpt, llama, moe, mlp, resnet, hf, exported, "
      "torchscript, plugin, lua), but got none");
}

TEST_CASE("a job for an application's own module has no [model]") {
  auto job = Job::parse("seed = 7\n[model]\nfrozen = [\"head.**\"]", "a.toml");
  CHECK(job.model.kind.empty());
  CHECK(Job::parse(to_toml(job), "a.toml") == job);
  CHECK_NOTHROW(job.complete());
  CHECK(error_of("[model]\nwidth = 8").starts_with("[job] a.toml:2:1: model.width is a key of "));
  CHECK_THAT(
      error_of("[model]\noptions.a = 1"),
      Catch::Contains("model.options belongs to the kinds plugin and lua, but the kind is not "
                      "given"));
}

TEST_CASE("an unknown key is an error with its place and the nearest name") {
  CHECK(gpt("sed = 1") == "[job] a.toml:2:1: a job has no key \"sed\", did you mean \"seed\"?");
  CHECK(gpt("[btch]\nglobal = 1") ==
        "[job] a.toml:2:2: a job has no key \"btch\", did you mean \"batch\"?");
  CHECK(gpt("[train]\n  step = 1") ==
        "[job] a.toml:3:3: [train] has no key \"step\", did you mean \"steps\"?");
  CHECK(error_of("[model]\nkind = \"gpt\"\nwidht = 1") ==
        "[job] a.toml:3:1: [model] has no key \"widht\", did you mean \"width\"?");
  CHECK(error_of("[model]\nkind = \"gpt\"\nkv_heads = 1") ==
        "[job] a.toml:3:1: model.kv_heads is a key of llama, but the kind is gpt");
  CHECK(error_of("[model]\nkind = \"gpt\"\nzzz = 1\naaa = 1") ==
        "[job] a.toml:3:1: [model] has no key \"zzz\" (and 1 more key of [model] is wrong)");
  CHECK(gpt("[[optimizer.group]]\nmatch = \"a\"\nlearning = 1") ==
        "[job] a.toml:4:1: [optimizer.group] has no key \"learning\"");
}

TEST_CASE("a table of several wrong keys reports the first and the number of the others") {
  std::string keys = "[train]\n";
  for (int i = 0; i < 48; ++i) keys += fmt::format("key{} = 1\n", i);
  CHECK(gpt(keys + "steps = \"many\"\nlog_every = -1\nvalidate_every = 2\n[batch]\nmicr = 3\n") ==
        "[job] a.toml:3:1: [train] has no key \"key0\" (and 49 more keys of [train] are wrong)");
  CHECK(gpt("sed = 1\nnames = 2\n[train]\nstep = 1") ==
        "[job] a.toml:2:1: a job has no key \"sed\", did you mean \"seed\"? (and 1 more key of the "
        "job is wrong)");
}

TEST_CASE("a wrong type is an error with its place") {
  CHECK(gpt("seed = \"one\"") == "[job] a.toml:2:8: seed is an integer, but got \"one\"");
  CHECK(gpt("seed = 1.5") == "[job] a.toml:2:8: seed is an integer, but got 1.5");
  CHECK(gpt("name = 3") == "[job] a.toml:2:8: name is a string, but got 3");
  CHECK(gpt("train = 3") == "[job] a.toml:2:9: train is a table, but got 3");
  CHECK(gpt("[data]\ntext = [1]") ==
        "[job] a.toml:3:8: data.text is a list of strings, but got a list");
  CHECK(gpt("[data]\nsynthetic = 1") ==
        "[job] a.toml:3:13: data.synthetic is true or false, but got 1");
  CHECK(gpt("[optimizer]\nlr = true") ==
        "[job] a.toml:3:6: optimizer.lr is a number, but got true");
  CHECK(gpt("[optimizer]\nbetas = [0.9, \"x\"]") ==
        "[job] a.toml:3:9: optimizer.betas is a list of numbers, but got a list");
  CHECK(gpt("[optimizer]\ngroup = 1") ==
        "[job] a.toml:3:9: optimizer.group is a list of tables ([[optimizer.group]]), but got 1");
  CHECK(gpt("name = 2024-01-01") == "[job] a.toml:2:8: name is a string, but got a date or time");
}

TEST_CASE("a value outside its limits is an error with its place") {
  CHECK(gpt("seed = -1") == "[job] a.toml:2:8: seed is at least 0, but got -1");
  CHECK(gpt("[cluster]\nthreads = 1025") ==
        "[job] a.toml:3:11: cluster.threads is at least 1 and at most 1024, but got 1025");
  CHECK(gpt("[cluster]\nthreads = 1024") == "no error");
  CHECK(gpt("[cluster]\nranks = 1048577") ==
        "[job] a.toml:3:9: cluster.ranks is at least 1 and at most 1048576, but got 1048577");
  CHECK(gpt("[cluster]\ntimeout = 1e10") ==
        "[job] a.toml:3:11: cluster.timeout is more than 0 and at most 1000000000, but got "
        "10000000000");
  CHECK(gpt("[batch]\nmicro = 0") == "[job] a.toml:3:9: batch.micro is at least 1, but got 0");
  CHECK(gpt("[optimizer]\nclip_norm = -1") ==
        "[job] a.toml:3:13: optimizer.clip_norm is at least 0, but got -1");
  CHECK(gpt("[optimizer]\nbetas = [0.9, 1.0]") ==
        "[job] a.toml:3:9: optimizer.betas is at least 0 and less than 1, but got 1");
  CHECK(gpt("[optimizer]\nbetas = [0.9]") ==
        "[job] a.toml:3:9: optimizer.betas has 2 numbers, but got 1");
  CHECK(gpt("[optimizer]\nlr = nan") == "[job] a.toml:3:6: optimizer.lr is finite, but got nan");
  CHECK(gpt("[megatron]\na = {b = [1, -inf]}") ==
        "[job] a.toml:3:14: the numbers of [megatron] are finite, but one is -inf");
  CHECK(gpt("[optimizer]\neps = 0") == "[job] a.toml:3:7: optimizer.eps is more than 0, but got 0");
  CHECK(gpt("[optimizer]\nname = \"adamx\"") ==
        "[job] a.toml:3:8: optimizer.name is one of sgd, adam, adamw, lion, rmsprop, adagrad, "
        "adamax, nadam, radam, adafactor, muon, but got \"adamx\", did you mean \"adam\"?");
  CHECK(gpt("[[optimizer.group]]\nmatch = [\"a\"]\nname = \"muon\"")
            .find("where optimizer.name is muon, but that is adamw") != std::string::npos);
  CHECK(gpt("[lr_schedule]\nkind = \"step\"") ==
        "[job] a.toml:3:8: lr_schedule.kind is one of constant, linear, cosine, inverse_sqrt, wsd, "
        "but got \"step\"");
  CHECK(gpt("[data]\nvalidation = 1") ==
        "[job] a.toml:3:14: data.validation is at least 0 and less than 1, but got 1");
  CHECK(error_of("[model]\nkind = \"gpt3\"") ==
        "[job] a.toml:2:8: model.kind is one of gpt, llama, moe, mlp, resnet, hf, exported, "
        "torchscript, "
        "plugin, lua, but got \"gpt3\", did you mean \"gpt\"?");
  CHECK(error_of("[model]\nkind = \"lua\"") ==
        "[job] a.toml:1:1: model.file is needed for the kind lua, but got none");
  CHECK(error_of("[model]\nkind = \"gpt\"\ndtype = \"float\"") ==
        "[job] a.toml:3:9: model.dtype is one of float64, float32, bfloat16, but got \"float\", "
        "did you mean \"float64\"?");
  CHECK(error_of("[model]\nkind = \"resnet\"\ndepth = 19") ==
        "[job] a.toml:3:9: model.depth is one of 18, 34, 50, 101, 152, but got 19");
}

TEST_CASE("an invalid combination of keys is an error") {
  CHECK(gpt("batch = { global = 32, micro = 5 }") ==
        "[job] a.toml:2:32: batch.micro divides batch.global (32), but got 5");
  CHECK(gpt("[batch]\nglobal = 30\nmicro = 4") ==
        "[job] a.toml:4:9: batch.micro divides batch.global (30), but got 4");
  CHECK(gpt("name = \"a/b\"") ==
        "[job] a.toml:2:8: name is a file name without \"/\" that does not start with \".\", but "
        "got \"a/b\"");
  CHECK(gpt("[data]\ntext = \"x\"\nsynthetic = true")
            .find("data is one of text, tokens, jsonl, conversations, tensors, synthetic and "
                  "[[data.sources]], but got text and synthetic") != std::string::npos);
  CHECK(gpt("[data]\nsynthetic = false") ==
        "[job] a.toml:3:13: data is one of text, tokens, jsonl, conversations, tensors, synthetic "
        "and "
        "[[data.sources]], but got none");
  CHECK(gpt("[data]\ntext = []") ==
        "[job] a.toml:3:8: data.text must list a file, but is empty: name files, or set "
        "data.synthetic "
        "= true for made-up data");
  CHECK(gpt("[data]\ntext = []\nsynthetic = true") == "no error");
  CHECK(gpt("[data]\ntext = \"no/such/*.txt\"") ==
        "[job] a.toml:3:8: data.text names files, but none matches \"no/such/*.txt\"");
  CHECK(gpt("[data]\ntokenizer = \"no.model\"") ==
        "[job] a.toml:3:13: data.tokenizer names a file, but there is no \"no.model\"");
  CHECK(gpt("strategy = \"no.lua\"") ==
        "[job] a.toml:2:12: strategy names a file, but there is no \"no.lua\"");
  CHECK(gpt("model.positions = 127\n[data]\nsequence = 128") ==
        "[job] a.toml:2:19: model.positions is at least data.sequence (128), but got 127");
  CHECK(gpt("[lr_schedule]\nwarmup = 201") ==
        "[job] a.toml:3:10: lr_schedule.warmup is at most train.steps (200), but got 201");
  CHECK(gpt("[lr_schedule]\nkind = \"wsd\"\nwarmup = 150\ndecay = 51") ==
        "[job] a.toml:5:9: lr_schedule.decay is at most train.steps - lr_schedule.warmup (50), but "
        "got 51");
  CHECK(gpt("[data]\nslice_files = true") ==
        "[job] a.toml:3:15: data.slice_files divides files among ranks, but data is synthetic");
  CHECK(gpt("[data]\ntext = \"strategies/data/*.txt\"\nbatched = \"tokens\"") ==
        "[job] a.toml:4:11: data.batched requires data.tensors or data.synthetic, but data.text "
        "has only samples");
  CHECK(gpt("[data]\nleft_over = \"deal\"") ==
        "[job] a.toml:3:13: data.left_over requires data.slice_files, but "
        "that is false");
  CHECK(gpt("[data]\nleft_over = \"keep\"") ==
        "[job] a.toml:3:13: data.left_over is one of share, deal, drop, but got \"keep\"");
  CHECK(gpt("[cluster]\ndevices = \"1,1\"") ==
        "[job] a.toml:3:11: cluster.devices lists different GPUs by their numbers, \"0,2\", but "
        "got \"1,1\"");
  CHECK(gpt("[train]\nweights = \"none.safetensors\"") ==
        "[job] a.toml:3:11: train.weights names a file, but there is no \"none.safetensors\"");
  CHECK(gpt("[weight_decay_schedule]\nstart = -1") ==
        "[job] a.toml:3:9: weight_decay_schedule.start is at least 0, but got -1");
  CHECK(gpt("[lr_schedule]\nmin_lr = 0.1") ==
        "[job] a.toml:3:10: lr_schedule.min_lr is at most optimizer.lr (0.0003), but got 0.1");
  CHECK(gpt("[optimizer]\nname = \"sgd\"\nnesterov = true\ndampening = 0.1") ==
        "[job] a.toml:4:12: optimizer.nesterov needs momentum and no dampening, but got momentum "
        "0.9 and dampening 0.1");
  CHECK(gpt("[[optimizer.group]]\nlr = 1") ==
        "[job] a.toml:2:1: optimizer.group.match names parameters, but got none");
  CHECK(gpt("[epl.pipeline]\nnum_micro_batch = 2\n[megatron]\n") ==
        "[job] a.toml:4:2: a job is written in one dialect, but got [epl] and [megatron]");
  CHECK(gpt("epl = 2") == "[job] a.toml:2:1: epl is a table, but got 2");
  CHECK(gpt("strategy = \"ddp\"\n[epl.pipeline]\nnum_micro_batch = 2") ==
        "[job] a.toml:2:12: a job has a strategy or a dialect's table, but got both \"ddp\" and "
        "[epl]");
  const auto model = [](const std::string& keys) { return error_of("[model]\n" + keys); };
  CHECK(model("kind = \"gpt\"\nheads = 3") ==
        "[job] a.toml:3:9: model.heads divides model.width (256), but got 3");
  CHECK(model("kind = \"llama\"\nkv_heads = 3") ==
        "[job] a.toml:3:12: model.kv_heads divides model.heads (4), but got 3");
  CHECK(model("kind = \"llama\"\nwidth = 12") ==
        "[job] a.toml:1:1: the size of a head (model.width / model.heads) is even, but got 3");
  CHECK(model("kind = \"moe\"\ntop_k = 9") ==
        "[job] a.toml:3:9: model.top_k is at most model.experts (8), but got 9");
  CHECK(model("kind = \"gpt\"\npositions = 8") ==
        "[job] a.toml:3:13: model.positions is at least data.sequence (256), but got 8");
  CHECK(model("kind = \"plugin\"") ==
        "[job] a.toml:1:1: model.file is needed for the kind plugin, but got none");
  CHECK(model("kind = \"plugin\"\nfile = \"no.so\"") ==
        "[job] a.toml:3:8: model.file names a file, but there is no \"no.so\"");
  CHECK(model("kind = \"gpt\"\noptions = { a = 1 }") ==
        "[job] a.toml:3:11: model.options belongs to the kinds plugin and lua, but "
        "the kind is gpt");
  CHECK(model("kind = \"plugin\"\noptions = { a = {} }") ==
        "[job] a.toml:3:17: an option is true or false, a number, a string or a list of numbers or "
        "strings, but model.options.a is a table");
}

TEST_CASE("paths are relative to the job's file") {
  const Folder folder;
  folder.add("a.txt", "x");
  const auto file = folder.at("jobs/a.toml");
  CHECK(error_of("model.kind = \"gpt\"\ndata.text = \"../a.txt\"", {}, file) == "no error");
  CHECK(error_of("model.kind = \"gpt\"\ndata.text = \"a.txt\"", {}, file) ==
        fmt::format("[job] {}:2:13: data.text names files, but none matches \"{}\"", file,
                    folder.at("jobs/a.txt")));
  CHECK(error_of("model.kind = \"mlp\"\ndata.text = \"../a.txt\"", {}, file) ==
        fmt::format("[job] {}:2:13: the kind mlp learns from data.tensors or data.synthetic, but "
                    "got text",
                    file));
  CHECK(error_of("model.kind = \"gpt\"\nmodel.vocab = 10\ndata.text = \"../a.txt\"", {}, file) ==
        fmt::format("[job] {}:2:15: model.vocab is at least 256 for the tokenizer bytes, but got "
                    "10",
                    file));
}

TEST_CASE("an invalid --set is an error") {
  const std::string text = "model.kind = \"gpt\"\n[batch]\nmicro = 4\n";
  CHECK(error_of(text, {"batch.micro"}) == "[job] --set is KEY=VALUE, but got \"batch.micro\"");
  CHECK(error_of(text, {"=3"}) == "[job] --set is KEY=VALUE, but got \"=3\"");
  CHECK(error_of(text, {"batch.micro=two"}) ==
        "[job] --set: batch.micro is an integer, but got \"two\"");
  CHECK(error_of(text, {"batch.micro=5"}) ==
        "[job] --set: batch.micro divides batch.global (32), but got 5");
  CHECK(error_of(text, {"batch.global=5"}) ==
        "[job] a.toml:3:9: batch.micro divides batch.global (5), but got 4");
  CHECK(error_of(text, {"bath.micro=1"}) ==
        "[job] --set: a job has no key \"bath\", did you mean \"batch\"?");
  CHECK(error_of(text, {"a..b=1"}).substr(0, 10) == "[job] --se");
  CHECK(error_of(text, {"data.text=here.txt"}) ==
        "[job] --set: data.text names files, but none matches \"here.txt\"");
}
