#include "train/trainer.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fail.h"
#include "base/files/durable.h"
#include "capture/deferred.h"
#include "checkpoint/target.h"
#include "checkpoint/weights/merge.h"
#include "data/shared_source.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"
#include "job/rank_process.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/output/checkpoints.h"
#include "train/ranks/blueprint.h"
#include "train/ranks/connect.h"
#include "train/ranks/share.h"
#include "train/step/check_loss.h"
#include "train/step/rank_trainer.h"
#include "train/step/step_data.h"
#include "train/step/step_scalars.h"
#include "train/step/step_spec.h"
#include "train/task/threads.h"

namespace perigee {

using train::Blueprint;
using train::RankTrainer;
using BindingKind = compile::Binding::Kind;

Ranks Ranks::threads(int64_t count) {
  if (count < 1) fail("ranks", "there must be at least 1 rank, but got {}", count);
  Ranks ranks;
  ranks.threads_ = count;
  return ranks;
}

Ranks Ranks::process(job::RankPlace place) {
  Ranks ranks;
  ranks.process_ = true;
  ranks.place_ = std::move(place);
  job::load_kernels_at_start(ranks.place_);
  return ranks;
}

Ranks Ranks::from_environment() {
  const auto place = job::place_from_environment();
  if (place) return process(*place);
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    if (std::getenv(name) == nullptr) continue;
    fail("ranks", "a launcher sets RANK and WORLD_SIZE, but only {} is set", name);
  }
  return threads(1);
}

namespace {

// A data source that returns the same global batch in every step.
class FixedBatch : public DataSource {
 public:
  FixedBatch(const Batch& batch, const Job& job) : batch_(batch), data_(job.data) {}
  Batch at(int64_t, Range samples) override {
    Batch part;
    for (const auto& [name, tensor] : batch_) {
      part[name] = data_.is_batched(name) ? tensor.narrow(0, samples.begin, samples.length)
                                          : tensor;
    }
    return part;
  }

 private:
  const Batch& batch_;
  const job::DataConfig& data_;
};

// Throws Error where the job has other batches than the plan was made for.
void check_batches(const PlannedJob& plan, const Job& job) {
  const auto samples = [&](const Job& of) {
    return train::with_fitted_batch(of, plan.plan).batch.global;
  };
  if (samples(job) == samples(plan.job)) return;
  fail("trainer",
       "the job must have batches like that of the plan, which has batch.global = {}, but has {}: "
       "make a plan for this job",
       plan.job.batch.global, job.batch.global);
}

// `ranks`: of this process.
Job with_threads(Job job, int64_t ranks) {
  job.cluster.threads = train::threads_of_rank(job, ranks);
  return job;
}

// Is done before the ranks start, so that they all can go on after an error.
void check_batch(const Batch& batch, const Job& job, const graph::Graph& graph) {
  for (const auto& [name, tensor] : batch) {
    if (!job.data.is_batched(name) || !tensor.defined()) continue;
    if (tensor.dim() == 0 || tensor.size(0) != job.batch.global) {
      fail("trainer", "a global batch has batch.global = {} samples, but {} has {}",
           job.batch.global, name, tensor.dim() == 0 ? 0 : tensor.size(0));
    }
  }
  train::check_fields(job, graph, batch);
}

}  // namespace

struct Trainer::Impl {
  Job job;
  std::unique_ptr<DataSource> data;
  std::vector<train::Connection> connections;  // of the ranks of this process
  profile::Database database;
  profile::TraceDatabase traces;
  std::vector<Blueprint> blueprints;
  std::vector<std::unique_ptr<RankTrainer>> ranks;
  Strategy strategy;  // of the plan
  std::function<Control(const Report&)> on_step;
  int64_t last_step = 0;
  bool has_values = false;  // weights are initialised or loaded
  // A step that ended by an error while weights or buffers changed; 0: none, or a checkpoint was
  // loaded since.
  int64_t broken_step = 0;
  std::atomic_flag working;  // `each` runs

  Impl(const Job& job, std::unique_ptr<DataSource> data, const std::string& profile,
       std::vector<train::Connection> connected)
      : job(with_threads(job, std::ssize(connected))),
        data(std::move(data)),
        connections(std::move(connected)),
        database(profile.empty() ? profile_of(job) : profile),
        traces(database, static_cast<int>(this->job.cluster.threads), connections.front().device) {}

  exec::Communicator& communicator(size_t i) const { return *connections[i].communicator; }
  bool has_root() const { return communicator(0).rank() == 0; }

  // Runs `body` for all ranks of this process concurrently. When one throws, the waits of the
  // others end; rethrows the first error. Ranks that are threads can communicate again then.
  void each(const std::function<void(size_t)>& body) {
    if (working.test_and_set()) {
      fail("trainer",
           "a trainer must not be called before its last call returned: by its data source, or by "
           "two threads at once");
    }
    const auto done = [this](void*) { working.clear(); };
    const std::unique_ptr<void, decltype(done)> at_end(this, done);
    std::exception_ptr first;
    std::mutex mutex;
    const auto run = [&](size_t i) {
      at::NoGradGuard no_grad;
      const exec::OpThreads of_rank(static_cast<int>(job.cluster.threads));
      try {
        body(i);
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        communicator(i).abort(error.what());  // other ranks fail by it
      }
    };
    if (connections.size() == 1) {
      run(0);
    } else {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < connections.size(); ++i) threads.emplace_back(run, i);
      for (auto& thread : threads) thread.join();
    }
    if (!first) return;
    if (connections.size() > 1) restore();
    std::rethrow_exception(first);
  }

  // Makes ranks that are threads able to communicate after an error, unless a device is lost.
  void restore() {
    try {
      for (const auto& rank : connections) rank.device->synchronize([] {});
    } catch (const std::exception&) {
      return;  // the error that is being reported came first
    }
    for (const auto& rank : connections) rank.communicator->restore();
  }

  void require_values() const {
    if (broken_step > 0) {
      fail_run("trainer",
               "step {} ended by an error when ranks had begun to change weights or buffers: call "
               "load with a checkpoint, or make a new trainer",
               broken_step);
    }
    if (has_values) return;
    fail("trainer",
         "weights need values, but job.train.initialise is false and none were loaded: call load, "
         "or name job.train.weights");
  }

  // Returns the sum over ranks of this process of the steps in which a rank began to change weights
  // or buffers.
  int64_t updates_begun() const {
    int64_t sum = 0;
    for (const auto& rank : ranks) sum += rank->executor().updates_begun();
    return sum;
  }

  // Sets the step's loss scale on a rank, where the plan leaves it to the strategy.
  void set_loss_scale(size_t i, int64_t step) {
    if (blueprints[i].plan.precision.loss_scale.kind != plan::LossScale::Kind::given) return;
    const auto scale = communicator(i).rank() == 0 ? strategy.ask("loss_scale", step) : 0;
    ranks[i]->set_loss_scale(train::share_number(scale, *train::everyone(communicator(i))));
  }

  Report step(int64_t step, DataSource& source) {
    require_values();
    const auto begin = std::chrono::steady_clock::now();
    SharedSource shared(source);
    Report report;
    const auto updates_before = updates_begun();
    try {
      each([&](size_t i) {
        set_loss_scale(i, step);
        const auto result = ranks[i]->step(step, shared);
        if (i == 0) {
          report.loss = result.loss;
          report.grad_norm = result.grad_norm;
          report.loss_scale = result.loss_scale;
          report.skipped = result.skipped;
        }
      });
    } catch (...) {
      if (updates_begun() > updates_before) broken_step = step;
      throw;
    }
    last_step = step;
    report.step = step;
    report.lr = train::step_scalars(job, step).at("lr.0");
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report;
  }
};

Trainer::Trainer(torch::nn::Module& net, const PlannedJob& plan, const Job& given, Ranks ranks,
                 std::unique_ptr<DataSource> data, const std::string& profile) {
  if (given.lr_schedule.warmup < 0) {
    fail("trainer", "a job that is made in code must be completed: call Job::complete()");
  }
  check_batches(plan, given);
  const auto world = ranks.process_ ? ranks.place_.world : ranks.threads_;
  if (plan.plan.mesh.size() != world) {
    fail("trainer",
         "the plan's mesh must have as many ranks as there are, but it has {} and there are {}: "
         "pass {{{}}} to make_plan, or make other ranks",
         plan.plan.mesh.size(), world, world);
  }
  mesh::verify_ranks(plan.plan.mesh, world);
  exec::install_allocator();
  std::vector<train::Connection> connections;
  if (ranks.process_) {
    connections.push_back(train::connect(given, ranks.place_));
  } else {
    connections = train::connect_threads(given, world);
  }
  impl_ = std::make_unique<Impl>(train::with_fitted_batch(given, plan.plan), std::move(data),
                                 profile, std::move(connections));
  auto& impl = *impl_;
  const auto& job = impl.job;
  Blueprint blueprint{
      plan.captured.graph,
      plan.source->at(job.batch.global / plan.plan.microbatches / copies_of(plan.plan), true).graph,
      plan.captured.init,
      plan.captured.tied,
      plan.plan,
      train::graph_of_two(*plan.source, plan.captured.graph, plan.plan, job.train.forward_only)};
  std::map<std::string, at::Tensor> values;
  for (const auto& item : net.named_parameters()) values[item.key()] = item.value().detach();
  for (const auto& item : net.named_buffers()) values[item.key()] = item.value();
  // Tensors with values, as after copy_to, have them in place of their initialisation.
  std::erase_if(values, [](const auto& item) { return tracing::is_deferred(item.second); });
  std::erase_if(blueprint.init.outputs, [&](const auto& output) {
    return output.kind == graph::Output::Kind::result && values.contains(output.name);
  });
  if (impl.has_root()) train::log_coupling(blueprint.training, blueprint.plan);
  // Records the missing traces once, before the ranks compile.
  train::require_trained(job, blueprint.training);
  const auto spec = train::step_spec(job, blueprint.training);
  blueprint.plan = compile::fit_recompute(blueprint.training, std::move(blueprint.plan), spec,
                                          impl.traces);
  compile::predict_memory(blueprint.training, blueprint.plan, spec, impl.traces);
  const bool begins = job.train.initialise || !job.train.weights.empty();
  impl.blueprints.resize(impl.connections.size());
  impl.ranks.resize(impl.connections.size());
  impl.each([&](size_t i) {
    impl.blueprints[i] = train::share(blueprint, impl.communicator(i));
    impl.ranks[i] = std::make_unique<RankTrainer>(impl.blueprints[i], impl.job, impl.connections[i],
                                                  impl.traces);
    if (!begins) return;
    impl.ranks[i]->initialise([&](const std::string& name) {
      const auto found = values.find(name);
      return found == values.end() ? at::Tensor() : found->second;
    });
  });
  impl.strategy = plan.strategy;
  impl.has_values = begins;
}

Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;

Trainer::Impl& Trainer::impl() const {
  if (!impl_) fail("trainer", "this trainer was moved from: call the one that it was moved to");
  return *impl_;
}

void Trainer::on_step(std::function<Control(const Report&)> callback) {
  impl().on_step = std::move(callback);
}

void Trainer::run() {
  if (!impl().data)
    fail("trainer", "run needs a data source, but the trainer has none: use step, or pass one");
  bool stop = false;
  while (!stop && impl().last_step < impl().job.train.steps) {
    const auto report = impl().step(impl().last_step + 1, *impl().data);
    auto& mine = impl().communicator(0);
    const bool others = mine.world() > static_cast<int64_t>(impl().connections.size());
    try {
      stop = impl().has_root() && impl().on_step && impl().on_step(report) == Control::stop;
    } catch (const std::exception& error) {
      if (others) mine.abort(fmt::format("on_step threw: {}", error.what()));
      throw;
    }
    if (others) stop = train::share_text(stop ? "stop" : "", *train::everyone(mine)) == "stop";
  }
}

Report Trainer::step(const Batch& batch) {
  check_batch(batch, impl().job, impl().blueprints.front().training);
  FixedBatch source(batch, impl().job);
  return impl().step(impl().last_step + 1, source);
}

int64_t Trainer::last_step() const { return impl().last_step; }

std::map<std::string, double> Trainer::evaluate(const Batch& batch) {
  impl().require_values();
  check_batch(batch, impl().job, impl().blueprints.front().evaluation);
  FixedBatch source(batch, impl().job);
  SharedSource shared(source);
  std::map<std::string, double> metrics;
  impl().each([&](size_t i) {
    const auto result = impl().ranks[i]->evaluate(1, shared);
    if (i == 0) {
      metrics["loss"] = result.loss;
      for (const auto& [name, value] : result.results) {
        if (value.dim() == 0) metrics[name] = value.item<double>();
      }
    }
    impl().ranks[i]->end_evaluation();
  });
  return metrics;
}

std::map<std::string, at::Tensor> Trainer::forward(const Batch& batch) {
  impl().require_values();
  check_batch(batch, impl().job, impl().blueprints.front().evaluation);
  const auto& plan = impl().blueprints.front().plan;
  if (plan.pipeline.cuts()) {
    fail("trainer",
         "forward gives whole results, but the plan has a pipeline over {}: load a checkpoint into "
         "a trainer with a plan without one",
         plan.pipeline.axis);
  }
  if (plan.microbatches > 1) {
    fail("trainer",
         "forward gives whole results, but the plan has {} microbatches: make a plan with one",
         plan.microbatches);
  }
  if (copies_of(plan) > 1) {
    fail("trainer",
         "forward gives the results of one model, but ranks train {} copies of it over {}: load a "
         "checkpoint into a trainer with another plan",
         copies_of(plan), plan.copy_axes.text());
  }
  FixedBatch source(batch, impl().job);
  SharedSource shared(source);
  std::map<std::string, at::Tensor> results;
  impl().each([&](size_t i) {
    impl().ranks[i]->evaluate(1, shared);
    auto whole = impl().ranks[i]->full_results();
    impl().ranks[i]->end_evaluation();
    if (i == 0) results = std::move(whole);
  });
  return results;
}

void Trainer::save(const std::string& folder) {
  impl().require_values();
  // A folder that cannot be made is an error before the ranks start.
  if (impl().has_root() && !checkpoint::is_s3(folder)) make_folders(folder + "/checkpoints");
  auto job = impl().job;
  job.train.stop_if_not_finite = true;  // a checkpoint that is not written is an error
  impl().each([&](size_t i) {
    train::Checkpoints checkpoints(
        *impl().ranks[i], impl().communicator(i), job,
        {.run = folder, .plan_hash = plan::hash(impl().blueprints[i].plan)});
    checkpoints.begin(impl().last_step, "{}", /*copies=*/false);
    checkpoints.wait();
  });
}

void Trainer::load(const std::string& folder) {
  const auto path = checkpoint::find_checkpoint(folder);
  const checkpoint::Checkpoint given(path);
  for (const auto& rank : impl().ranks) rank->require_fits(given);  // before the ranks start
  impl().each([&](size_t i) {
    const checkpoint::Checkpoint checkpoint(path);
    impl().ranks[i]->load(checkpoint);
    if (i == 0) impl().last_step = checkpoint.info().step;
  });
  impl().has_values = true;
  impl().broken_step = 0;
}

void Trainer::copy_to(torch::nn::Module& net) {
  impl().require_values();
  std::map<std::string, at::Tensor> values;
  impl().each([&](size_t i) {
    for (const auto& input : impl().blueprints[i].training.inputs) {
      const bool parameter = input.kind == graph::Input::Kind::parameter;
      if (!parameter && input.kind != graph::Input::Kind::buffer) continue;
      auto whole = impl().ranks[i]->full(parameter ? BindingKind::parameter : BindingKind::buffer,
                                         input.name);
      if (i == 0) values[input.name] = std::move(whole);
    }
  });
  if (const auto& adapters = impl().blueprints.front().plan.adapters) {
    for (const auto& weight : adapters->weights) {
      auto& value = values[weight];
      if (!value.defined()) continue;  // another process has rank 0
      value = checkpoint::merged(value, values[graph::adapter_a(weight)],
                                 values[graph::adapter_b(weight)], adapters->scale());
    }
  }
  const auto& tied = impl().blueprints.front().tied;
  at::NoGradGuard no_grad;
  bool copied = false;
  const auto copy = [&](const std::string& name, at::Tensor target) {
    const auto other = tied.find(name);
    const auto found = values.find(other == tied.end() ? name : other->second);
    if (found == values.end()) return;  // the graph does not use it
    if (found->second.sizes() != target.sizes()) {
      fail("trainer",
           "copy_to needs a module like that of the plan, but {} is [{}] in place of [{}]", name,
           fmt::join(target.sizes(), ", "), fmt::join(found->second.sizes(), ", "));
    }
    copied = true;
    if (tracing::is_deferred(target)) {
      target.set_data(found->second.to(target.scalar_type()));
    } else {
      target.copy_(found->second);
    }
  };
  for (auto& item : net.named_parameters()) copy(item.key(), item.value());
  for (auto& item : net.named_buffers()) copy(item.key(), item.value());
  if (!copied && !values.empty()) {
    fail("trainer",
         "copy_to needs a module like that of the plan, but it has no tensor of its names, such as "
         "{}",
         values.begin()->first);
  }
}

}  // namespace perigee
