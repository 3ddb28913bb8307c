#include "train/host.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/weights/adapter_folder.h"
#include "checkpoint/weights/export_folder.h"
#include "checkpoint/weights/merge.h"
#include "exec/comm/agreement.h"
#include "exec/comm/job_secret.h"
#include "train/commands/chat.h"
#include "train/commands/evaluate_job.h"
#include "train/commands/gradient_check.h"
#include "train/commands/machine.h"
#include "train/commands/move_profile.h"
#include "train/commands/plan_job.h"
#include "train/commands/profile_job.h"
#include "train/commands/sample.h"
#include "train/commands/serve.h"
#include "train/commands/train_job.h"
#include "train/measure/profile_path.h"
#include "train/output/run_folder.h"
#include "train/plan/task_plan.h"
#include "train/ranks/device.h"
#include "train/ranks/shared_settings.h"
#include "train/run/rank_session.h"
#include "train/task/open_model.h"

namespace perigee::train {
namespace {

// What an export reads.
struct Exported {
  explicit Exported(const std::string& given)
      : path(checkpoint::find_checkpoint(given)),
        run(checkpoint::run_of(path)),
        checkpoint(path),
        adapters(checkpoint::adapters_of_run(run, checkpoint)) {}

  std::string merged() const {
    if (!adapters) return "";
    return fmt::format("the adapters of {} weights are merged into them, as W + {:.4g} B A",
                       adapters->weights.size(), adapters->scale());
  }

  std::string path, run;
  checkpoint::Checkpoint checkpoint;
  std::optional<graph::Adapters> adapters;
};

class TorchHost : public Host {
 public:
  int64_t default_ranks(const job::Job& job) override { return train::default_ranks(job); }

  bool has_checkpoint(const job::Job& job) override { return train::has_checkpoint(job); }

  job::HostAgreement agreement(const Task& task, const std::string& secret) override {
    auto settings = shared_settings(completed(task));
    const auto own = task_settings(task);
    settings.insert(settings.end(), own.begin(), own.end());
    return {exec::print_settings(settings),
            [settings](const std::string& others) {
              return exec::settings_difference(others, "this host", settings);
            },
            exec::keyed_hash(secret)};
  }

  PlanResult plan(const Task& task) override { return plan_job(task); }

  int64_t planned_ranks(const Task& task) override {
    auto asked = task;
    asked.job = completed(task);
    return plan_task(asked).plan.mesh.size();
  }

  void train(const Task& task, const job::RankPlace& place,
             const std::function<bool()>& stop) override {
    run_session(task, place, [&](RankSession& session) {
      train_job(task, session, stop);
      return std::string();
    });
  }

  GradientReport check_gradients(const Task& task, double tolerance) override {
    auto on_cpu = task;
    on_cpu.job.cluster.device = "cpu";
    on_cpu.job = completed(on_cpu);
    const auto check = train::check_gradients(plan_task(on_cpu), tolerance);
    return {print(check), check.passed()};
  }

  std::string evaluate(const Task& task, const std::string& checkpoint,
                       const job::RankPlace& place) override {
    return run_session(
        task, place, [&](RankSession& session) { return evaluate_job(task, session, checkpoint); });
  }

  std::string profile(const Task& task, const ProfileOptions& options, const job::RankPlace& place,
                      const ProfileProgress& progress) override {
    return run_session(task, place, [&](RankSession& session) {
      return profile_job(task, session, options, place, progress);
    });
  }

  std::string move_profile(const ProfileOptions& options) override {
    return train::move_profile(options);
  }

  SimulateResult simulate(const Task& task) override { return simulate_job(task); }

  void sample(const Task& task, const SampleOptions& options, const job::RankPlace& place,
              const std::function<void(std::string_view)>& print) override {
    run_session(task, place, [&](RankSession& session) {
      sample_text(task, session, options, print);
      return std::string();
    });
  }

  void chat(const Task& task, const ChatOptions& options, const job::RankPlace& place,
            const ChatIo& io) override {
    run_session(task, place, [&](RankSession& session) {
      train::chat(task, session, options, io);
      return std::string();
    });
  }
  void serve(const Task& task, const ServeOptions& options, const job::RankPlace& place,
             const ServeIo& io) override {
    run_session(task, place, [&](RankSession& session) {
      train::serve(task, session, options, io);
      return std::string();
    });
  }

  std::string export_weights(const std::string& checkpoint, const std::string& file) override {
    const Exported from(checkpoint);
    if (from.adapters) {
      checkpoint::export_merged(from.checkpoint, *from.adapters, file);
    } else {
      checkpoint::export_checkpoint(from.checkpoint, file);
    }
    return from.merged();
  }

  std::string export_folder(const ExportFolder& options) override {
    const Exported from(options.checkpoint);
    checkpoint::export_folder(from.checkpoint, checkpoint::model_of_run(from.run),
                              {.folder = options.folder,
                               .shard_bytes = options.shard_bytes,
                               .dtype = graph::dtype_of(options.dtype),
                               .adapters = from.adapters});
    return from.merged();
  }

  void export_adapter(const std::string& checkpoint, const std::string& folder) override {
    const Exported from(checkpoint);
    if (!from.adapters) {
      fail("export",
           "--adapter writes the adapters of the method lora, but {} has none: use -o or "
           "--hf",
           from.run);
    }
    checkpoint::export_adapter(from.checkpoint, checkpoint::model_of_run(from.run), *from.adapters,
                               folder);
  }

  std::vector<std::string> doctor() override {
    auto lines = describe_machine();
    const auto profile = default_profile();
    lines.push_back(fmt::format("profile     {}", profile.empty() ? "in memory only" : profile));
    return lines;
  }
};

}  // namespace
}  // namespace perigee::train

extern "C" const char* perigee_host_version() { return perigee::kVersion.data(); }

extern "C" perigee::train::Host* perigee_host() {
  c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL
  static perigee::train::TorchHost host;
  return &host;
}
