#include "train/task_plan.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "binding/around.h"
#include "capture/models.h"
#include "exec/tensor.h"
#include "profile/times.h"
#include "profile/traces.h"
#include "search/page.h"
#include "search/report.h"
#include "search/simulate.h"
#include "train/advice.h"
#include "train/connect.h"
#include "train/known.h"
#include "train/local_cluster.h"
#include "train/machine.h"
#include "train/memory_check.h"
#include "train/safetensors.h"
#include "train/step_spec.h"
#include "train/tokenizer.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

binding::LuaModelSettings lua_settings(const Task& task, const job::Job& job, std::string file) {
  binding::LuaModelSettings settings;
  settings.file = std::move(file);
  settings.job = describe(job);
  const bool bytes = job.data.tokenizer == "bytes";
  settings.job["data"]["vocab"] = bytes ? 256 : make_tokenizer(job.data.tokenizer)->vocab();
  settings.lua.limits = {task.script_seconds, task.script_megabytes};
  settings.lua.seed = static_cast<uint64_t>(job.seed);
  settings.lua.runtime_folder = task.runtime_folder;
  return settings;
}

// The model's forward function with a batch's fields in the places of its inputs: those of the list
// that `prepare` returns, or the data's `fields`.
Forward by_order(const Task& task, const Model& model, std::vector<std::string> fields) {
  const auto& kind = task.job.model.kind;
  if (model.inputs.empty() && kind != "lua") {
    fail(
        "model",
        "model.unpack = \"sequence\" gives a model its inputs by their order, but {} reads them by "
        "name: fill in Model::inputs, or leave the key out",
        task.job.model.text("file"));
  }
  return [forward = model.forward, inputs = model.inputs,
          fields = std::move(fields)](const Batch& batch) {
    std::vector<std::string> given;
    while (batch.contains(field_name(given.size()))) given.push_back(field_name(given.size()));
    if (given.empty()) {
      std::copy_if(fields.begin(), fields.end(), std::back_inserter(given),
                   [&](const auto& field) { return batch.contains(field); });
    }
    if (!inputs.empty() && given.size() > inputs.size()) {
      fail("model",
           "model.unpack = \"sequence\" gives the model its {} inputs ({}) in their order, but the "
           "batch has {} fields ({})",
           inputs.size(), fmt::join(inputs, ", "), given.size(), fmt::join(given, ", "));
    }
    Batch bound;
    for (size_t i = 0; i < given.size(); ++i) {
      bound[inputs.empty() ? field_name(i) : inputs[i]] = batch.at(given[i]);
    }
    return forward(bound);
  };
}

// The model with what model.unpack and model.around put around it.
std::shared_ptr<const Source> make_source(const Task& task, const Model& model,
                                          const Batch& example,
                                          const std::vector<std::string>& data_fields) {
  auto forward = model.forward;
  if (task.job.model.unpack == "sequence") forward = by_order(task, model, data_fields);
  if (const auto& script = task.job.model.around; !script.empty()) {
    std::set<std::string> fields;
    for (const auto& [name, tensor] : example) fields.insert(name);
    forward = binding::around(std::move(forward), std::move(fields),
                              lua_settings(task, task.job, script));
  }
  return std::make_shared<Source>(model.module, example, std::move(forward),
                                  task.job.data.batched_names);
}

// Returns the names of the model's inputs, ascending.
std::vector<std::string> inputs_of(const job::Job& job) {
  std::set<std::string> names;
  for (const auto& field : job.model.fields) names.insert(field.name);
  const auto& kind = job.model.kind;
  if (names.empty() && (kind == "lua" || kind == "torchscript" || kind == "plugin")) {
    for (const auto& path : job.data.files) {
      const SafetensorsFile file(path);
      for (const auto& tensor : file.tensors()) names.insert(tensor.name);
    }
  }
  if (names.empty()) {
    for (const auto& field : make_model(job.model, job.data.sequence).batch) {
      names.insert(field.name);
    }
  }
  return {names.begin(), names.end()};
}

// Returns data.batched with names in the place of places.
std::vector<std::string> batched_names(const job::Job& job) {
  auto list = job.data.batched;
  const auto is_place = [](const std::string& text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (std::ranges::none_of(list, is_place)) return list;
  const auto names = inputs_of(job);
  for (auto& input : list) {
    if (!is_place(input) || std::ranges::find(names, input) != names.end()) continue;
    if (input.size() > 9 || std::stoull(input) >= names.size()) {
      fail("job",
           "data.batched lists places of the model's {} inputs ({}), from 0 (Alpa's batch_argnums "
           "from 1), but got {}",
           names.size(), fmt::join(names, ", "), input);
    }
    input = names[std::stoull(input)];
  }
  return list;
}

// Seconds in which changes of a plan that does not fit are looked at.
constexpr double kAdviceSeconds = 5;

template <class Check>
bool fits(Check check) {
  try {
    check();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Returns what would make the plan fit; "" where that is not known.
std::string remedies(const Planned& planned, const std::string& runtime_folder,
                     const std::function<bool(const plan::Plan&)>& fits) {
  try {
    return memory_advice(advise(planned, runtime_folder, kAdviceSeconds), fits);
  } catch (const Error& error) {
    log::debug("no advice: {}", error.what());
    return "";
  }
}

void check_memory_of_devices(const Planned& planned, const plan::Plan& plan,
                             const std::string& runtime_folder) {
  const auto cluster_for = [&](const plan::Plan& any) {
    return cluster_of(planned.job, any.mesh.size(), runtime_folder);
  };
  check_memory(plan, cluster_for(plan), [&] {
    return remedies(planned, runtime_folder, [&](const plan::Plan& other) {
      return fits([&] { check_memory(other, cluster_for(other)); });
    });
  });
}

Strategy open_strategy(const Task& task) {
  if (!task.plan_file.empty()) {
    return Strategy::plan(plan::parse(read_file(task.plan_file, "plan"), task.plan_file));
  }
  if (task.strategy == "auto" && task.plain) return Strategy::data("[]");
  const ScriptOptions options{task.script_seconds, task.script_megabytes,
                              static_cast<uint64_t>(task.job.seed), task.runtime_folder};
  if (task.strategy != "auto") return Strategy::file(task.strategy, options);
  if (!task.job.dialect.name.empty()) return Strategy::dialect(task.job.dialect, options);
  return {};
}

}  // namespace

job::Job completed(const Task& task) {
  auto job = task.job;
  if (job.model.values.contains("vocab") && job.model.integer("vocab") == 0) {
    job.model.values["vocab"] = make_tokenizer(job.data.tokenizer)->vocab();
  }
  if (job.model.kind == "lua") {
    job.model.fields.clear();
    for (const auto& field : binding::lua_batch(lua_settings(task, job, job.model.text("file")))) {
      job.model.fields.push_back({field.name, std::string(graph::name_of(field.dtype)), field.shape,
                                  field.classes, field.shift});
    }
  }
  job.data.batched_names = batched_names(job);
  return job;
}

std::shared_ptr<const Source> open_model(const Task& task) {
  const auto& job = task.job;
  if (job.model.kind == "torchscript" || job.model.kind == "plugin") {
    auto model = job.model.kind == "torchscript"
                     ? load_script(job.model.text("file"))
                     : load_plugin(job.model.text("file"), describe(job)["model"].dump());
    auto data = open_data(job);
    return make_source(task, model, data.training->at(0, {0, 1}), data.fields);
  }
  const bool lua = job.model.kind == "lua";
  auto built = lua ? binding::load_lua(lua_settings(task, job, job.model.text("file")))
                   : make_model(job.model, job.data.sequence);
  Batch example;
  std::vector<std::string> fields;
  const bool by_order = job.model.unpack == "sequence";
  const bool described = !built.batch.empty() && !(by_order && !job.data.tensors.empty());
  if (!described || by_order) {
    const auto data = open_data(job);
    fields = data.fields;
    if (!described) example = data.training->at(0, {0, 1});
  }
  for (const auto& field : built.batch) {
    if (!lua) built.model.inputs.push_back(field.name);
    if (!described) continue;
    auto shape = field.shape;
    if (job.data.is_batched(field.name)) shape.insert(shape.begin(), 1);
    example[field.name] = at::empty(
        shape, at::TensorOptions().device(at::kMeta).dtype(exec::scalar_type(field.dtype)));
  }
  return make_source(task, built.model, example, fields);
}

Planned plan_task(const Task& task, const std::string& plan_text, bool foretold) {
  auto source = open_model(task);
  auto strategy = open_strategy(task);
  const auto observer = strategy;
  if (!plan_text.empty()) strategy = Strategy::plan(plan::parse(plan_text));
  auto planned =
      perigee::make_plan(std::move(source), strategy, task.job,
                         {task.world_given ? task.world : 0, task.runtime_folder, foretold});
  if (!plan_text.empty()) planned.strategy = observer;
  return planned;
}

std::string read_own_plan(const std::string& file) {
  auto text = read_file(file, "plan");
  try {
    plan::parse(text, file);
  } catch (const Error&) {
    fail("plan",
         "{} must be as it was written, but it is no plan: copy it again, or go on with --plan or "
         "--strategy",
         file);
  }
  return text;
}

compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces) {
  const auto told = plan.prediction;
  const auto spec = step_spec(job, graph);
  plan = compile::fit_recompute(graph, std::move(plan), spec, traces);
  auto programs = compile::compile_all(graph, plan, spec, traces);
  plan.prediction = compile::predict_memory(programs);
  plan.prediction.step_seconds = told.step_seconds;
  plan.prediction.measured_share = told.measured_share;
  return programs;
}

void predict_known(Planned& planned, const job::Job& job, const std::string& runtime_folder) {
  Known known(job, planned.plan.mesh.size());
  auto& plan = planned.plan;
  at_methods(planned, [&](plan::Plan made) {
    predict(made, planned.captured.graph, job, known.traces());
    plan = std::move(made);
  });
  if (!job.cluster.file.empty()) check_memory_of_devices(planned, plan, runtime_folder);
}

void check_memory_here(const Planned& planned, const plan::Plan& plan, int64_t local_ranks,
                       const std::string& runtime_folder) {
  if (uses_gpu(planned.job, /*tell=*/false)) {
    return check_memory_of_devices(planned, plan, runtime_folder);
  }
  const HostMemory host{.ranks = local_ranks, .bytes = memory_of_host()};
  check_memory(plan, host, [&] {
    // More ranks would share the same memory.
    return remedies(planned, runtime_folder, [&](const plan::Plan& other) {
      if (other.mesh.size() != plan.mesh.size()) return false;
      return fits([&] { check_memory(other, host); });
    });
  });
}

std::string advice_of(const Planned& planned, const Task& task) {
  methods::Request request;
  if (!task.advice || !methods_of(planned, request)) return "";
  return speed_advice(advise(planned, task.runtime_folder, kAdviceSeconds));
}

std::string page_of(const Planned& planned, const job::Job& job,
                    const std::string& runtime_folder) {
  const auto& graph = planned.captured.graph;
  const auto cluster = cluster_of(job, planned.plan.mesh.size(), runtime_folder);
  Known known(job, planned.plan.mesh.size());
  const auto programs =
      compile::compile_all(graph, planned.plan, step_spec(job, graph), known.traces());
  search::OpCosts costs(cluster, known.times());
  const auto simulation = search::simulate(
      programs, planned.plan.mesh, costs, {.runs = true, .stage_axis = planned.plan.pipeline.axis});
  return search::to_html({.title = job.name,
                          .graph = graph,
                          .plan = planned.plan,
                          .programs = programs,
                          .simulation = simulation,
                          .costs = costs,
                          .found = planned.found.get()});
}

}  // namespace perigee::train
