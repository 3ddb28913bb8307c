// The interface between the command and perigee_torch, which exports `perigee_host`. The command
// opens the library only for work that needs tensors. Torch-free, so that the command's sources
// compile without LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "job/host_agreement.h"
#include "job/job.h"
#include "job/place.h"
#include "train/task/results.h"
#include "train/task/task.h"

namespace perigee::train {

// Options of `perigee export --hf`.
struct ExportFolder {
  std::string checkpoint;  // or a run
  std::string folder;
  int64_t shard_bytes = 0;  // largest file
  std::string dtype;        // "": the types of the model's folder
};

class Host {
 public:
  virtual ~Host() = default;
  // Returns how many ranks the job has by default: one for each of cluster.devices, or for
  // each GPU of this host where it computes on GPUs, else 1. Does not use CUDA, so ranks may
  // be forked afterwards.
  virtual int64_t default_ranks(const job::Job& job) = 0;
  // Returns whether the job's run has a complete checkpoint.
  virtual bool has_checkpoint(const job::Job& job) = 0;
  // Returns the settings and the hash of the task's hosts.
  virtual job::HostAgreement agreement(const Task& task, const std::string& secret) = 0;
  // Captures the job's model and makes the plan. Takes no time measurements and runs no step.
  virtual PlanResult plan(const Task& task) = 0;
  // Makes the plan that the task's ranks would make, and returns how many ranks its mesh has. The
  // process can fork no ranks afterwards.
  virtual int64_t planned_ranks(const Task& task) = 0;
  // Runs one rank until training ends, `stop_requested` returns true, or an Error. Rank 0 writes
  // the run's folder. With cluster.in_process this function, `evaluate` and `profile` run all ranks
  // of place.world as threads and return the result of rank 0.
  virtual void train(const Task& task, const job::RankPlace& place,
                     const std::function<bool()>& stop_requested) = 0;
  // Compares the gradients of the job's first step with those of one device
  // (train/commands/gradient_check.h), all ranks in this process. Writes nothing.
  virtual GradientReport check_gradients(const Task& task, double tolerance) = 0;
  // Runs one rank of an evaluation of the checkpoint ("": the newest of train.output). Rank 0
  // returns the metrics as JSON text, the others "".
  virtual std::string evaluate(const Task& task, const std::string& checkpoint,
                               const job::RankPlace& place) = 0;
  // Runs one rank of the measurement of the job's plan, and keeps the times in the profile
  // database. Where the search chose the plan, also measures other plans that might be faster,
  // until the choice no longer changes. Rank 0 returns a report, the others "".
  virtual std::string profile(const Task& task, const ProfileOptions& options,
                              const job::RankPlace& place, const ProfileProgress& progress) = 0;
  // Exports or imports the profile database, as the options say. Returns a report.
  virtual std::string move_profile(const ProfileOptions& options) = 0;
  // Makes the plan and simulates a step of it, on cluster.file or with the times measured here.
  virtual SimulateResult simulate(const Task& task) = 0;
  // Runs one rank of the generation of text; on rank 0 `print` receives it piece by piece.
  virtual void sample(const Task& task, const SampleOptions& options, const job::RankPlace& place,
                      const std::function<void(std::string_view)>& print) = 0;
  // Runs one rank of a conversation (train/commands/chat.h); rank 0 uses `io`.
  virtual void chat(const Task& task, const ChatOptions& options, const job::RankPlace& place,
                    const ChatIo& io) = 0;
  // Runs one rank of a server until io.ended() (train/commands/serve.h); rank 0 uses `io`.
  virtual void serve(const Task& task, const ServeOptions& options, const job::RankPlace& place,
                     const ServeIo& io) = 0;
  // Writes the full weights of a checkpoint as one safetensors file. Returns a sentence about merged
  // adapters, "" where there are none.
  virtual std::string export_weights(const std::string& checkpoint, const std::string& file) = 0;
  // Does the same as a folder of Hugging Face.
  virtual std::string export_folder(const ExportFolder& options) = 0;
  // Writes the adapters of a checkpoint as a folder of PEFT.
  virtual void export_adapter(const std::string& checkpoint, const std::string& folder) = 0;
  // Returns lines for `perigee doctor`: back ends, devices, versions, what is missing.
  virtual std::vector<std::string> doctor() = 0;
};

}  // namespace perigee::train

// Returns the library's one host. A command calls it only if `perigee_host_version` is its own.
extern "C" perigee::train::Host* perigee_host();
extern "C" const char* perigee_host_version();
