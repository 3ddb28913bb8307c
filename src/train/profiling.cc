#include "train/profiling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "compile/collective.h"
#include "profile/measure.h"
#include "search/op_cost.h"
#include "train/blueprint.h"

namespace perigee::train {
namespace {

using cost::CollectiveKind;
using exec::Collective;

constexpr int kRounds = 15;
constexpr double kLeastBytes = 256, kMostBytes = 64 << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Distinct op instances, by key.
std::map<std::string, compile::OpInstance> instances_of(const compile::Programs& programs) {
  std::map<std::string, compile::OpInstance> instances;
  for (const auto& program : programs.programs) {
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != compile::Instruction::Kind::op) continue;
        auto instance = search::instance_of(program, instruction);
        auto key = compile::key(instance);
        instances.try_emplace(std::move(key), std::move(instance));
      }
    }
  }
  return instances;
}

// The largest bytes of each kind and size of group.
std::map<std::pair<CollectiveKind, int64_t>, double> exchanges_of(const compile::Programs& programs,
                                                                  const mesh::Mesh& mesh) {
  std::map<std::pair<CollectiveKind, int64_t>, double> exchanges;
  for (const auto& program : programs.programs) {
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != compile::Instruction::Kind::collective) continue;
        const auto exchange = search::exchange_of(program, instruction, mesh, program.rank);
        if (exchange.copies || exchange.ranks.size() < 2) continue;
        auto& bytes = exchanges[{exchange.kind, static_cast<int64_t>(exchange.ranks.size())}];
        bytes = std::max(bytes, exchange.bytes);
      }
    }
  }
  return exchanges;
}

exec::Transfer transfer_of(CollectiveKind kind, int64_t elements, exec::Group& group,
                           at::Device place) {
  const auto ranks = group.size();
  const auto tensor = [&](int64_t n) {
    return at::ones({n}, at::TensorOptions().device(place).dtype(at::kFloat));
  };
  const std::vector<int64_t> counts(static_cast<size_t>(ranks), elements / ranks);
  exec::Transfer t;
  switch (kind) {
    case CollectiveKind::all_reduce:
      t.kind = Collective::Kind::all_reduce;
      t.input = tensor(elements);
      t.output = t.input;
      break;
    case CollectiveKind::all_gather:
      t.kind = Collective::Kind::all_gather;
      t.input = tensor(elements / ranks);
      t.output = tensor(elements);
      t.output_counts = counts;
      break;
    case CollectiveKind::reduce_scatter: {
      t.kind = Collective::Kind::reduce_scatter;
      t.input = tensor(elements);
      t.output = tensor(elements / ranks);
      t.input_counts = counts;
      const auto workspace = compile::workspace_elements("comm::reduce_scatter", counts);
      if (workspace > 0) t.workspace = tensor(workspace);
      break;
    }
    case CollectiveKind::all_to_all:
      t.kind = Collective::Kind::all_to_all;
      t.input = tensor(elements);
      t.output = tensor(elements);
      t.input_counts = t.output_counts = counts;
      break;
    case CollectiveKind::broadcast:
      t.kind = Collective::Kind::broadcast;
      if (group.index() == 0) t.input = tensor(elements);
      t.output = tensor(elements);
      break;
    case CollectiveKind::message:
      if (group.index() == 0) {
        t.kind = Collective::Kind::send;
        t.input = tensor(elements);
        t.peer = 1;
      } else {
        t.kind = Collective::Kind::receive;
        t.output = tensor(elements);
        t.peer = 0;
      }
      break;
  }
  return t;
}

// Returns nothing for an op that cannot be run by itself.
std::optional<profile::Measured> measure_op(const compile::OpInstance& instance,
                                            compile::TraceSource& traces,
                                            const std::shared_ptr<exec::Device>& device,
                                            int threads) {
  try {
    return profile::measure(instance, traces, device, threads);
  } catch (const std::exception& error) {
    log::debug("profile: {} is not measured: {}", instance.op, error.what());
    return std::nullopt;
  }
}

class Profiling {
 public:
  Profiling(const job::Job& job, const Connection& connection, compile::TraceSource& traces,
            profile::TimeDatabase& times, const ProfileOptions& options)
      : job_(job),
        connection_(connection),
        traces_(traces),
        times_(times),
        options_(options),
        root_(connection.communicator->rank() == 0),
        group_(everyone(*connection.communicator)),
        end_(now() + options.seconds) {}

  // Rank 0 decides what is measured.
  bool all_agree(bool go) { return share_text(root_ && go ? "y" : "n", *group_) == "y"; }

  void op(const std::string& key, const compile::OpInstance& instance, Profiled& done) {
    ++done.ops;
    const bool known = !options_.again && times_.op(key).has_value();
    if (known) ++done.known;
    if (!all_agree(!known && now() < end_)) {
      if (!known) ++done.unmeasured;
      return;
    }
    const auto measured =
        measure_op(instance, traces_, connection_.device, static_cast<int>(job_.cluster.threads));
    if (!measured) {
      ++done.unmeasured;
      return;
    }
    ++done.measured;
    done.widest = std::max(done.widest, measured->interval / measured->seconds);
    if (root_) times_.put(key, *measured);
  }

  void collective(CollectiveKind kind, int64_t ranks, double most, Profiled& done) {
    const bool known = !options_.again && times_.collective(kind, ranks, 1).has_value();
    if (!all_agree(!known && now() < end_)) return;
    std::vector<int64_t> members(static_cast<size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    if (connection_.tensors->rank() < ranks) {
      const auto group = connection_.tensors->group(fmt::format("profile.{}", ranks), members);
      std::vector<std::pair<double, profile::Measured>> points;
      for (double bytes = kLeastBytes;; bytes *= 8) {
        bytes = std::min({bytes, std::max(most, kLeastBytes), kMostBytes});
        const auto elements = std::max<int64_t>(1, static_cast<int64_t>(bytes) / 4 / ranks) * ranks;
        points.emplace_back(static_cast<double>(elements) * 4, point(kind, elements, *group));
        if (bytes >= std::min(most, kMostBytes)) break;
      }
      if (root_) times_.put(kind, ranks, profile::fit(points));
      ++done.collectives;
    }
    group_->run({.kind = Collective::Kind::barrier});
  }

 private:
  profile::Measured point(CollectiveKind kind, int64_t elements, exec::Group& group) {
    auto transfer = transfer_of(kind, elements, group, connection_.device->place());
    const auto run = [&] {
      group.run({.kind = Collective::Kind::barrier});
      const double begin = now();
      group.start_flat(transfer)->wait();
      connection_.device->synchronize([] {});
      return now() - begin;
    };
    run();
    run();
    // All ranks run as often: no budget, which each would see for itself.
    return profile::median_of(run, {.budget = 0, .precision = 0, .fewest = kRounds});
  }

  const job::Job& job_;
  const Connection& connection_;
  compile::TraceSource& traces_;
  profile::TimeDatabase& times_;
  const ProfileOptions& options_;
  bool root_;
  std::shared_ptr<exec::Group> group_;
  double end_;
};

}  // namespace

Profiled profile_programs(const compile::Programs& programs, const mesh::Mesh& mesh,
                          const job::Job& job, const Connection& connection,
                          compile::TraceSource& traces, profile::TimeDatabase& times,
                          const ProfileOptions& options,
                          const std::function<void(int64_t, int64_t)>& progress) {
  const double begin = now();
  Profiled done;
  const auto instances = instances_of(programs);
  const auto exchanges = exchanges_of(programs, mesh);
  const auto all = static_cast<int64_t>(instances.size() + exchanges.size());
  Profiling profiling(job, connection, traces, times, options);
  int64_t count = 0;
  // Collectives first: they are few, and a plan needs all of them.
  for (const auto& [what, bytes] : exchanges) {
    profiling.collective(what.first, what.second, bytes, done);
    if (progress) progress(++count, all);
  }
  for (const auto& [key, instance] : instances) {
    profiling.op(key, instance, done);
    if (progress) progress(++count, all);
  }
  done.seconds = now() - begin;
  return done;
}

Profiled profile_ops(const compile::Programs& programs, const job::Job& job,
                     const std::shared_ptr<exec::Device>& device, compile::TraceSource& traces,
                     profile::TimeDatabase& times, double seconds) {
  const double begin = now();
  Profiled done;
  for (const auto& [key, instance] : instances_of(programs)) {
    ++done.ops;
    if (times.op(key)) {
      ++done.known;
      continue;
    }
    const auto measured =
        now() - begin < seconds
            ? measure_op(instance, traces, device, static_cast<int>(job.cluster.threads))
            : std::nullopt;
    if (!measured) {
      ++done.unmeasured;
      continue;
    }
    ++done.measured;
    done.widest = std::max(done.widest, measured->interval / measured->seconds);
    times.put(key, *measured);
  }
  done.seconds = now() - begin;
  return done;
}

std::string describe(const Profiled& done) {
  auto text = fmt::format(
      "{} distinct ops: {} measured, {} known before, {} estimated; {} kinds of collectives "
      "measured; {:.1f} s",
      done.ops, done.measured, done.known, done.unmeasured, done.collectives, done.seconds);
  if (done.measured > 0) {
    text += fmt::format("; the widest 95% interval is {:.1f}% of its time", 100 * done.widest);
  }
  return text + "\n";
}

}  // namespace perigee::train
