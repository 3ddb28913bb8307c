// Training through the command, and the files of a run.

#include <catch2/catch.hpp>
#include <cstring>

#include "job/job.h"
#include "plan/plan.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

TEST_CASE("a run leaves its metrics, plan, job, log and checkpoints") {
  const TrainingJob job;
  const auto ran = job.good("train",
                            "--nproc 2 --set train.steps=5 --set train.checkpoint_every=2 "
                            "--set train.keep_checkpoints=2 --set train.validate_every=5");
  CHECK(ran.out == "");
  CHECK_THAT(ran.err, Contains("step 5/5") && Contains("2 ranks"));
  const auto metrics = job.metrics();
  REQUIRE(metrics.size() == 6);
  for (int i = 0; i < 5; ++i) {
    const auto& line = metrics[i];
    CHECK(line["step"] == i + 1);
    CHECK(line["samples"] == 8);
    CHECK(line["tokens"] == 256);
    CHECK(line["peak_bytes"].size() == 2);
    CHECK(line["lr"] == 1e-3);
    CHECK(line["loss"] > 0.0);
    CHECK(line["grad_norm"] > 0.0);
    CHECK(line["step_s"] > 0.0);
    CHECK(line["tokens_per_s"] > 0.0);
    CHECK(line.contains("val_loss") == (i == 4));
  }
  CHECK(metrics[4]["loss"] < metrics[0]["loss"]);
  const auto& summary = metrics[5]["summary"];
  CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  for (int i = 0; i < 5; ++i) {
    for (const int64_t peak : metrics[i]["peak_bytes"]) CHECK(peak == summary["peak_bytes"][0]);
  }
  // The memory of libraries is a line of its own: above 0, and below that of a LibTorch process.
  const int64_t library = summary["library_bytes"][0];
  CHECK(library > 1 << 20);
  CHECK(library < int64_t{1} << 30);
  const auto plan = plan::parse(read(job.output() + "/plan.json"));
  CHECK(plan.mesh.size() == 2);
  const auto resolved = job::Job::load(job.output() + "/job.toml");
  CHECK(resolved.train.steps == 5);
  CHECK(resolved.model.integer("layers") == 2);
  CHECK_THAT(read(job.output() + "/log.txt"), Contains("step 5/5"));
  std::vector<std::string> kept;
  for (const auto& entry : fs::directory_iterator(job.output() + "/checkpoints")) {
    kept.push_back(entry.path().filename());
    CHECK(fs::exists(entry.path() / "COMPLETE"));
  }
  std::sort(kept.begin(), kept.end());
  CHECK(kept == std::vector<std::string>{"step-4", "step-5"});
}

TEST_CASE("steps are predicted for every plan, and utilisation on described devices") {
  const TrainingJob job;
  for (const std::string strategy : {"ddp", "auto", "pipeline_parallel"}) {
    const auto ran = job.good("train",
                              "--nproc 2 --set train.steps=2 --overwrite --strategy " + strategy);
    const auto summary = job.metrics().back()["summary"];
    CAPTURE(strategy, summary.dump());
    CHECK(summary["predicted_step_s"] > 0.0);
    CHECK(summary["predicted_measured"] >= 0.0);
    CHECK(summary["predicted_measured"] <= 1.0);
    CHECK_FALSE(summary.contains("mfu"));  // common figures of a core
    CHECK_THAT(ran.err, Contains("a step was predicted to take"));
  }
  const auto ran = job.good("train",
                            "--nproc 2 --set train.steps=2 --overwrite --strategy ddp --set "
                            "cluster.file=runtime/clusters/cpu.toml");
  const auto summary = job.metrics().back()["summary"];
  CHECK(summary["predicted_measured"] == 0.0);
  CHECK(summary["mfu"] > 0.0);
  CHECK(summary["mfu"] < 1.0);
  CHECK_THAT(ran.err, Contains("model FLOPs utilisation"));
}

TEST_CASE("the waits that a plan implies are worded as a prediction, measured ones as measured") {
  const TrainingJob job;
  const auto said = [&](const std::string& strategy) {
    return job
        .good("train",
              "--nproc 2 --set train.steps=2 --set batch.micro=8 --overwrite "
              "--strategy " +
                  strategy)
        .err;
  };
  // With one microbatch a stage idles while the other computes.
  const auto pipeline = said("pipeline_parallel"), data = said("ddp --set batch.micro=4");
  CHECK_THAT(pipeline, Contains("a rank is predicted to wait for others during ") &&
                           Contains("a step was predicted to take ") && Contains("waited ") &&
                           Contains(" ms for each other, measured"));
  CHECK(count(pipeline, "a rank waits") == 0);
  CHECK(count(data, "predicted to wait") == 0);
}

TEST_CASE("any number of ranks and microbatches trains the same model") {
  const TrainingJob job;
  const std::string same = "--set model.dtype=float64 --set model.dropout=0.1 --overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  const auto summary = job.metrics().back()["summary"];
  CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  for (const std::string more : {"--nproc 2",
                                 "--nproc 4 --set batch.micro=1",
                                 "--set batch.micro=2",
                                 "--nproc 2 --strategy accumulate",
                                 "--nproc 2 --strategy custom_method",
                                 "--nproc 4 --strategy tensor_parallel",
                                 "--nproc 4 --strategy pipeline_parallel",
                                 "--nproc 4 --strategy sequence_parallel",
                                 "--nproc 4 --strategy context_parallel",
                                 "--nproc 2 --strategy context_ring",
                                 "--nproc 4 --strategy context_hierarchical",
                                 "--nproc 4 --strategy 3d",
                                 "--nproc 8 --strategy 4d",
                                 "--nproc 2 --strategy checkpoint",
                                 "--nproc 4 --strategy hsdp_context",
                                 "--nproc 2 --strategy fsdp_low_memory",
                                 "--nproc 4 --strategy pipeline_zero",
                                 "--nproc 2 --strategy offload",
                                 "--nproc 2 --strategy fsdp_offload",
                                 "--nproc 2 --strategy overlap",
                                 "--nproc 2 --strategy deferred_head",
                                 "--nproc 2 --strategy checkpoint_budget",
                                 "--nproc 2 --strategy solved_checkpoint",
                                 "--nproc 2 --strategy checkpoint_kept",
                                 "--nproc 4 --strategy mixed_parallel",
                                 "--nproc 4 --strategy ds_3d_parallel",
                                 "--nproc 2 --strategy chunked_loss",
                                 "--nproc 2 --strategy module_replace",
                                 "--nproc 2 --strategy partition_constraints",
                                 "--nproc 4 --strategy auto_sharding",
                                 "--nproc 2 --strategy alpa_manual",
                                 "--nproc 4 --strategy alpa_auto",
                                 "--nproc 4 --strategy alpa_stages",
                                 "--nproc 2 --strategy alpa_zero",
                                 "--nproc 2 --set alpa.Zero2Parallel.num_micro_batches=2",
                                 "--nproc 4 --set alpa.ShardParallel.devices=[2,2] --set "
                                 "alpa.AutoShardingOption.allow_mixed_mesh_shape=false",
                                 "--nproc 2 --set alpa.ShardParallel.devices=[1,2] --set "
                                 "alpa.AutoShardingOption.allow_recompute_heavy_op=false",
                                 "--nproc 4 --set alpa.ShardParallel.devices=[2,2] --set "
                                 "alpa.AutoShardingOption.force_batch_dim_to_mesh_dim=1",
                                 "--nproc 2 --strategy autodist",
                                 "--nproc 2 --set autodist.solver=ilp --set autodist.mesh_col=2",
                                 "--nproc 2 --strategy autodist_pipeline",
                                 "--nproc 2 --set autodist.recompute_modules=ROOT",
                                 "--nproc 2 --strategy atorch_fsdp",
                                 "--nproc 4 --strategy atorch_mixed",
                                 "--nproc 2 --strategy atorch_zero",
                                 "--nproc 2 --strategy atorch_auto",
                                 "--nproc 2 --strategy epl_pipeline",
                                 "--nproc 2 --strategy epl_zero",
                                 "--nproc 2 --strategy epl_collection",
                                 "--nproc 2 --strategy epl_offload",
                                 "--nproc 2 --strategy epl_split",
                                 "--nproc 2 --strategy epl_auto",
                                 "--nproc 2 --set epl.pipeline.num_micro_batch=2",
                                 "--nproc 4 --strategy megatron_3d",
                                 "--nproc 4 --strategy megatron_sequence",
                                 "--nproc 4 --strategy megatron_context",
                                 "--nproc 4 --strategy megatron_overlap",
                                 "--nproc 2 --set megatron.tensor_model_parallel_size=2"}) {
    INFO(more);
    job.good("train", same + more);
    const auto others = job.losses();
    REQUIRE(others.size() == losses.size());
    for (size_t i = 0; i < losses.size(); ++i) CHECK(others[i] == Approx(losses[i]).epsilon(1e-10));
  }
  // The comparison can fail: another seed gives another model.
  job.good("train", same + "--set seed=7");
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("a mixture of experts trains the same with any placement of its experts") {
  const TrainingJob job;
  const std::string same =
      "--set model.kind=moe --set model.dtype=float64 --set model.experts=4 "
      "--set model.capacity_per=sample --overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  for (const std::string more :
       {"--nproc 2 --strategy expert_parallel", "--nproc 4 --strategy moe",
        "--nproc 2 --strategy epl_experts", "--nproc 4 --strategy megatron_experts",
        "--nproc 2 --strategy expert_overlap"}) {
    INFO(more);
    job.good("train", same + more);
    const auto others = job.losses();
    REQUIRE(others.size() == losses.size());
    for (size_t i = 0; i < losses.size(); ++i) CHECK(others[i] == Approx(losses[i]).epsilon(1e-10));
  }
}

TEST_CASE("a dialect's table in a job replaces a strategy, and its warnings appear once") {
  const TrainingJob job;
  const std::string table =
      "--nproc 2 --set megatron.tensor_model_parallel_size=2 --set megatron.moe_extended_tp=true "
      "--set megatron.LRSchedule.max_lr=0.5 ";
  const auto ran = job.good("train", table + "--set train.steps=2");
  const auto warning = ran.err.find("moe_extended_tp has no effect");
  CHECK(warning != std::string::npos);
  CHECK(warning == ran.err.rfind("moe_extended_tp has no effect"));
  CHECK(job::Job::load(job.output() + "/job.toml").optimizer.lr == 0.5);
  CHECK_THAT(read(job.output() + "/job.toml"), Contains("[megatron]\nmoe_extended_tp = true"));
  CHECK(job.good("train", table + "--set train.steps=3 --resume").status == 0);
  CHECK(job.losses().size() == 3);
  CHECK_THAT(job.good("plan", table + "--explain").out, Contains("megatron: written as"));
  CHECK_THAT(job.refused("plan", "--set megatron.sequence_parallel=true"),
             Contains("--set: [megatron] sequence_parallel needs"));
  // Another strategy replaces it.
  CHECK_THAT(job.good("plan", table + "--strategy ddp --explain").out, !Contains("megatron"));
}

TEST_CASE("a strategy's function is called for each step, also of a resumed run") {
  const TrainingJob job;
  const auto script = job.folder().write(
      "observe.lua",
      "local megatron = require 'perigee.megatron'\n"
      "return megatron.ModelParallelConfig { timers = function(report)\n"
      "  local names = {}\n"
      "  for i, section in ipairs(report.sections) do\n"
      "    names[i] = section.name .. (section.busy <= section['end'] - section.begin and '' or "
      "'!')\n"
      "  end\n"
      "  print('heard of step ' .. report.step .. ': ' .. table.concat(names, ' '))\n"
      "end }\n");
  const auto more = "--nproc 2 --set batch.micro=2 --set train.steps=2 --strategy " + script;
  const auto ran = job.good("train", more);
  CHECK_THAT(ran.err, Contains("heard of step 1: ") && Contains("heard of step 2: ") &&
                          Contains(" micro_first ") && Contains(" micro_last step\n"));
  CHECK(ran.err.find("heard of step 2") == ran.err.rfind("heard of step 2"));  // only on rank 0
  CHECK_THAT(job.good("train", more + " --set train.steps=3 --resume").err,
             Contains("heard of step 3: ") && !Contains("heard of step 2"));
  const auto fails = job.folder().write(
      "fails.lua", "return { methods = {}, events = { step = function() error 'enough' end } }");
  CHECK_THAT(job.refused("train", "--overwrite --nproc 2 --strategy " + fails),
             Contains("fails.lua:1: enough"));
}

TEST_CASE("hooks of a dialect edit the plan, and its functions scale the loss") {
  const TrainingJob job;
  const auto script = [&](const std::string& options) {
    return job.folder().write(
        "hooks.lua",
        "local megatron = require 'perigee.megatron'\nlocal config = megatron.ModelParallelConfig "
        "{ " +
            options + " }\n" +
            "return megatron.strategy { config, megatron.DistributedOptimizer {} }\n");
  };
  const std::string more = "--overwrite --nproc 2 --set train.steps=2 --strategy ";
  job.good("train", more + script("grad_sync_func = function(plan) "
                                  "plan:communication { communicators = 2 } end"));
  const auto plan = nlohmann::json::parse(read(job.output() + "/plan.json"));
  CHECK(plan["communication"]["communicators"] == 2);
  const auto plain = job.losses();
  // A power of two changes no mantissa bit of float32.
  job.good("train", more + script("grad_scale_func = function(loss, step) return loss * 2 ^ (10 + "
                                  "step) end"));
  CHECK(job.losses() == plain);
  CHECK(job.metrics()[0]["loss_scale"] == 2048);
  CHECK(job.metrics()[1]["loss_scale"] == 4096);
  CHECK_THAT(job.refused("train", more + script("grad_scale_func = function() return 0 end")),
             Contains("the scale of a step's loss is a number above 0, but got 0"));
  CHECK_THAT(job.refused("train", more + script("grad_scale_func = function() end")),
             Contains("the event loss_scale must return a number"));
}

TEST_CASE("ranks that are threads of one process train as processes do") {
  const TrainingJob job;
  const std::string more = "--overwrite --nproc 2 --set batch.micro=2 ";
  job.good("train", more);
  const auto losses = job.losses();
  const auto weights = job.weights();
  const auto ran = job.good("train", more + "--set cluster.in_process=true");
  CHECK(job.losses() == losses);
  CHECK(job.weights() == weights);
  CHECK(job.good("evaluate", "--nproc 2 --set cluster.in_process=true --set data.validation=0.2")
            .out.find("val_loss") != std::string::npos);
  // Alpa's pipeline on one device.
  const auto local = job.folder().write(
      "local.lua",
      "local alpa = require 'perigee.alpa'\nalpa.mark_pipeline_boundary 'blocks.1'\n"
      "return alpa.parallelize(alpa.LocalPipelineParallel {})\n");
  job.good("train", "--overwrite --set batch.micro=2 --strategy " + local);
  const auto piped = job.losses();
  REQUIRE(piped.size() == losses.size());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(piped[i] == Approx(losses[i]).epsilon(1e-5));
  CHECK_THAT(read(job.output() + "/job.toml"), Contains("in_process = true"));
  // The command prints a rank's message once.
  const auto fails = job.folder().write("fails.lua",
                                        "return { methods = {}, events = { step = function() error "
                                        "'enough' end } }");
  CHECK_THAT(job.refused("train", more + "--set cluster.in_process=true --strategy " + fails),
             Contains("fails.lua:1: enough"));
  CHECK_THAT(job.refused("train",
                         "--overwrite --nodes 2 --rendezvous 127.0.0.1:1 --set "
                         "cluster.in_process=true"),
             Contains("threads of one process, but there are several processes"));
}

TEST_CASE("initial values are read from a file if required, and files are distributed over ranks") {
  const TrainingJob job;
  job.good("train", "--nproc 2");
  const auto losses = job.losses();
  job.weights();
  const auto file = job.folder() / "weights.safetensors";
  const std::string overwrite = "--overwrite --nproc 2 --set optimizer.lr=0.0 ";
  job.good("train", overwrite + "--set train.initialise=false --set train.weights=" + file);
  CHECK(job.losses()[0] < losses[0]);  // it continues from the end of the first run
  CHECK_THAT(job.refused("train", overwrite + "--set megatron.perform_initialization=false"),
             Contains("train.initialise = false leaves first values") && Contains("--resume"));
  // Two files of one text each.
  const auto text = read("strategies/data/novels.txt");
  job.folder().write("a.txt", text.substr(0, text.size() / 2));
  job.folder().write("b.txt", text.substr(text.size() / 2));
  const auto dealt = overwrite + "--set data.text=[\"" + (job.folder() / "a.txt") + "\",\"" +
                     (job.folder() / "b.txt") + "\"] ";
  job.good("train", dealt);
  const auto shared = job.losses();
  CHECK_THAT(job.good("train", dealt + "--set epl.io.slicing=true").err, !Contains("no effect"));
  CHECK(job.losses() != shared);
  // Other ranks go on with the samples of a run on two, and hold out the same ones.
  const auto sliced = dealt + "--set data.slice_files=true --set optimizer.lr=1e-3 ";
  job.good("train", sliced + "--set train.validate_every=4");
  const auto whole = job.losses();
  const double held_out = job.metrics().at(3).at("val_loss");
  job.good("train", sliced + "--set train.steps=2");
  const auto alone = sliced.substr(overwrite.size());
  const auto resumed = job.good("train", "--resume --nproc 1 " + alone).err;
  CHECK_THAT(resumed, Contains("stay dealt to the 2 data ranks that the run began on"));
  const auto losses_of_both = job.losses();
  REQUIRE(losses_of_both.size() == whole.size());
  for (size_t i = 0; i < whole.size(); ++i)
    CHECK(losses_of_both[i] == Approx(whole[i]).epsilon(1e-5));
  const auto report = nlohmann::json::parse(job.good("evaluate", "--nproc 1 " + alone).out);
  CHECK(report["val_loss"].get<double>() == Approx(held_out).epsilon(1e-5));
  const auto warned =
      job.good("train", "--overwrite --nproc 2 --set optimizer.lr=0.0 --set epl.io.slicing=true")
          .err;
  CHECK_THAT(
      warned,
      Contains("data.slice_files has no effect: 1 file cannot be distributed evenly over 2"));
  CHECK(warned.find("slice_files has") == warned.rfind("slice_files has"));
}

TEST_CASE("the first step's gradients are checked before training begins") {
  const TrainingJob job;
  const auto ran = job.good("train", "--nproc 2 --set train.check_gradients=true");
  CHECK_THAT(ran.err, Contains("on 2 ranks agree with one device's to 0.001"));
  CHECK(job.losses().size() == 4);
  const auto rule = job.folder().write(  // applies the activation to the ranks' parts
      "wrong.lua",
      "local m = require 'perigee.methods'\n"
      "require('perigee.shard').rule('aten::relu', 'a* -> a*; linear(0)')\n"
      "local split = m.define { name = 'split', apply = function(plan)\n"
      "  plan:place('blocks.0.*', 'tensor', 'S0')\n"
      "  plan:place('blocks.1.weight', 'tensor', 'S1')\nend }\n"
      "return { m.parallel_mode { { 'tensor', 2 } }, split {} }\n");
  const TrainingJob mlp("kind = \"mlp\"\ninputs = 8\nwidth = 16\nlayers = 3\noutputs = 4\n");
  const auto wrong = mlp.refused(
      "train", "--set data.text=[] --set train.check_gradients=true --strategy " + rule, 1);
  CHECK_THAT(wrong,
             Contains("must be those of one device to 0.001, but ") && Contains(" is off by "));
}

TEST_CASE("a job may contain a table of Alpa's or AutoDist's options") {
  const TrainingJob job;
  for (const std::string table :
       {"--set alpa.num_micro_batches=2 --set alpa.UniformStageOption.num_stages=2",
        "--set alpa.num_micro_batches=2 --set alpa.pipeline_schedule=inference",
        "--set autodist.mesh_col=2 --set autodist.verbose=true"}) {
    const auto more = "--nproc 2 " + table;
    CHECK_THAT(job.good("plan", more + " --explain").out, Contains("written as"));
    job.good("train", "--overwrite " + more);
    CHECK(job.losses().size() == 4);
  }
  const auto staged = job.good("plan", "--nproc 2 --set alpa.num_micro_batches=2");
  CHECK(plan::parse(staged.out).pipeline.schedule == "1f1b");
  CHECK_THAT(job.refused("plan", "--set alpa.num_microbatches=2"),
             Contains("--set: [alpa] PipeshardParallel has no option \"num_microbatches\", did you "
                      "mean \"num_micro_batches\"?"));
  CHECK_THAT(job.refused("plan", "--set autodist.memory_constraint=1e-6 --nproc 2", 3),
             Contains("no plan fits"));
  // The profile is created at the path that the dialect names.
  const auto profile = job.folder() / "times.sqlite";
  job.good("train", "--overwrite --nproc 2 --set cluster.profile=" + profile);
  CHECK(fs::exists(profile));
  CHECK_THAT(job.refused("train", "--overwrite --set cluster.profile=" + job.file()),
             Contains("cluster.profile names a file NAME.sqlite"));
}

TEST_CASE("plan is deterministic, its plan can be used, and explains itself") {
  const TrainingJob job;
  const auto plan = job.good("plan", "--nproc 2");
  CHECK(job.good("plan", "--nproc 2").out == plan.out);
  CHECK(plan::print(plan::parse(plan.out)) == plan.out);
  CHECK_THAT(job.good("plan", "--nproc 2 --explain").out, Contains("axis data"));
  const auto file = job.folder().write("plan.json", plan.out);
  job.good("train", "--plan " + file);
  CHECK(plan::parse(read(job.output() + "/plan.json")).mesh.size() == 2);
  CHECK_THAT(job.refused("train", "--overwrite --set model.width=64 --plan " + file),
             Contains("graph"));
  CHECK_THAT(job.refused("train", "--overwrite --plan " + job.folder().write("bad.json", "{")),
             Contains("bad.json"));
  CHECK_THAT(job.good("graph").out, Contains("perigee.graph/1"));
  CHECK(json::parse(job.good("graph", "--json").out)["totals"]["parameters"] > 0);
}

TEST_CASE("a checkpoint can be evaluated, sampled and exported") {
  const TrainingJob job;
  CHECK_THAT(job.refused("evaluate"), Contains(job.output()));
  CHECK_THAT(job.refused("sample"), Contains(job.output()));
  job.good("train", "--nproc 2");
  const auto link = job.folder() / "run-\xe9";  // in Latin-1
  std::filesystem::create_directory_symlink(job.output(), link);
  const auto one = json::parse(job.good("evaluate", "--json --checkpoint " + link).out);
  const auto two = json::parse(job.good("evaluate", "--json --nproc 2").out);
  CHECK(one["val_loss"].get<double>() == Approx(two["val_loss"].get<double>()).epsilon(1e-5));
  auto full = job.how();
  full.output = "/dev/full";
  CHECK(run("evaluate " + job.file(), full).status == 1);
  const auto lost = run("sample " + job.file() + " --tokens 2 --nproc 2 --strategy ddp", full);
  CHECK(lost.status == 1);
  CHECK_THAT(lost.err, Contains("the result must be written to standard output"));
  const auto text = job.good("sample", "--prompt abc --tokens 20 --temperature 0").out;
  CHECK(job.good("sample", "--prompt abc --tokens 20 --temperature 0").out == text);
  CHECK(job.good("sample", "--tokens 20 --seed 1").out !=
        job.good("sample", "--tokens 20 --seed 2").out);
  // With any parallelism; float64, so that sums in another order draw no other token.
  const std::string drawn = "--prompt abc --tokens 20 --seed 3 --set model.dtype=float64";
  const auto alone = job.good("sample", drawn).out;
  for (const std::string strategy : {"tensor_parallel", "fsdp", "ddp"}) {
    INFO(strategy);
    CHECK(job.good("sample", drawn + " --nproc 2 --strategy " + strategy).out == alone);
  }
  CHECK_THAT(job.refused("sample", "--nproc 2 --strategy pipeline_parallel"),
             Contains("not generated with a pipeline") && Contains("or one rank"));
  CHECK_THAT(job.refused("sample", "--cluster dgx_a100"), Contains("--cluster is for planning"));
  const auto weights = job.weights();
  uint64_t length = 0;
  std::memcpy(&length, weights.data(), 8);
  const auto header = json::parse(weights.substr(8, length));
  CHECK(header.contains("blocks.0.norm1.weight"));
}

TEST_CASE("a closed standard error does not stop a run") {
  const TrainingJob job;
  auto how = job.how();
  how.closed_errors = true;
  CHECK(run("train " + job.file() + " --nproc 2", how).status == 0);
  CHECK(job.losses().size() == 4);
  CHECK(job.newest_checkpoint() == 4);
  const auto log = read(job.output() + "/log.txt");
  CHECK_THAT(log, Catch::Matchers::StartsWith("rank 0: job: ") && Contains("rank 0: done: 4"));
}

TEST_CASE("forward-only steps have the losses of unchanged weights") {
  const TrainingJob job;
  job.good("train", "--set optimizer.lr=0 --set train.steps=3");
  const auto trained = job.losses();
  const auto strategy = job.folder().write(
      "s.lua", "return require('perigee.autodist').AutoDistConfig { is_train = false }");
  for (const std::string more :
       {"--set train.forward_only=true --strategy ddp",
        "--set train.forward_only=true --nproc 2 --strategy fsdp",
        "--nproc 2 --set alpa.pipeline_schedule=inference --set alpa.num_micro_batches=2",
        "--nproc 2 --strategy "}) {
    INFO(more);
    job.good("train", "--overwrite --set train.steps=3 " + more +
                          (more.ends_with(" ") ? strategy : std::string()));
    const auto losses = job.losses();
    REQUIRE(losses.size() == 3);
    for (size_t i = 0; i < 3; ++i) CHECK(losses[i] == Approx(trained[i]).epsilon(1e-5));
    CHECK(job.checkpoints().empty());
  }
  // A rank holds only the weights and the values of the pass.
  const auto peak = [&] { return job.metrics().front()["peak_bytes"][0].get<int64_t>(); };
  job.good("train", "--overwrite --set train.steps=1 --set train.forward_only=true --strategy ddp");
  const auto forward = peak();
  job.good("train", "--overwrite --set train.steps=1 --strategy ddp");
  CHECK(2 * forward < peak());
  CHECK_THAT(job.refused("train", "--set train.forward_only=true --set train.check_gradients=true"),
             Contains("train.check_gradients needs gradients"));
}
