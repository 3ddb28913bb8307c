#include "train/measure/profiling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log_format.h"
#include "compile/draft/collective.h"
#include "profile/measure.h"
#include "simulate/op_cost.h"
#include "train/measure/join_times.h"
#include "train/measure/solo_run.h"
#include "train/measure/step_times.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"

namespace perigee::train {
namespace {

using Json = nlohmann::json;
using cost::CollectiveKind;
using cost::ExchangeKind;
using exec::Collective;

// Rounds of a collective that is measured separately: in batches of kRounds, until the confidence
// interval is kRoundsPrecision of the time or kMaxRounds have run.
constexpr size_t kRounds = 8, kMaxRounds = 32;
constexpr double kRoundsPrecision = 0.1;
// Steps that are measured: until the interval is kPrecision of the sum of all ops' times.
constexpr int64_t kMinSteps = 6, kMaxSteps = 400;
constexpr double kPrecision = 0.01;
// Elements that a rank works on before a collective, so that the caches are as in a step.
constexpr int64_t kOtherElements = 1 << 21;
// Sizes of collectives that are measured alone. The largest is at least kSlopeBytes: below, the
// line through the times has no slope from which those of larger ones could be predicted.
constexpr double kMinBytes = 256, kSlopeBytes = 4 << 20, kMaxBytes = 64 << 20;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The keys of a program's ops.
std::set<std::string> instances_of(const compile::Program& program) {
  std::set<std::string> keys;
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != compile::Instruction::Kind::op) continue;
      keys.insert(compile::key(simulate::instance_of(program, instruction)));
    }
  }
  return keys;
}

// Returns the ops to measure; adds all ops and those with times to `done`.
std::set<std::string> missing(const compile::Programs& programs, profile::TimeDatabase& times,
                              bool remeasure, Profiled& done) {
  for (const auto& program : programs.programs) done.ops.merge(instances_of(program));
  std::set<std::string> keys;
  for (const auto& key : done.ops) (remeasure || !times.knows(key) ? keys : done.known).insert(key);
  return keys;
}

// Returns the cluster with rank 0's levels alone: hosts with other numbers of ranks have others.
cost::Cluster with_shared_levels(cost::Cluster cluster, exec::Group& group) {
  auto levels = Json::array();
  for (const auto& link : cluster.links) {
    levels.push_back({{"level", link.level}, {"ranks", link.ranks}});
  }
  cluster.links.clear();
  for (const auto& level : Json::parse(share_text(levels.dump(), group))) {
    cluster.links.push_back(
        {.level = level["level"].get<std::string>(), .ranks = level["ranks"].get<int64_t>()});
  }
  return cluster;
}

// The collectives of a kind.
struct Collectives {
  std::vector<int64_t> ranks;  // of one of them; of messages, a sender and its receiver
  std::set<double> sizes;      // in bytes
};

// Returns two ranks of a shift that span its level.
std::vector<int64_t> pair_of(const std::vector<int64_t>& ranks, const cost::Cluster& cluster) {
  const int level = cost::level_of(cluster, ranks);
  const auto first = ranks.front();
  const auto other = std::ranges::find_if(
      ranks, [&](int64_t rank) { return rank != first && cluster.level(first, rank) == level; });
  return {first, *other};
}

// Returns the collectives of the programs.
std::map<ExchangeKind, Collectives> exchanges_of(const compile::Programs& programs,
                                                 const mesh::Mesh& mesh,
                                                 const cost::Cluster& cluster) {
  std::map<ExchangeKind, Collectives> exchanges;
  for (const auto& program : programs.programs) {
    for (const auto& section : program.sections) {
      for (const auto& instruction : section.instructions) {
        if (instruction.kind != compile::Instruction::Kind::collective) continue;
        const auto exchange = simulate::exchange_of(program, instruction, mesh, program.rank);
        if (exchange.copies || exchange.ranks.size() < 2) continue;
        auto& collectives = exchanges[cost::exchange_kind(cluster, exchange.kind, exchange.ranks)];
        collectives.sizes.insert(exchange.bytes);
        if (!collectives.ranks.empty()) continue;
        const bool message = exchange.kind == CollectiveKind::message;
        collectives.ranks = message ? pair_of(exchange.ranks, cluster) : exchange.ranks;
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

// Returns whether the ops' times are precise enough.
bool enough(const StepTimes& times) {
  if (times.steps() < kMinSteps) return false;
  if (times.steps() >= kMaxSteps) return true;
  // The errors of the ops are independent.
  double seconds = 0, squares = 0;
  for (const auto& [key, time] : times.ops()) {
    const auto samples = static_cast<double>(time.samples);
    seconds += time.seconds * samples;
    squares += time.interval * time.interval * samples * samples;
  }
  return std::sqrt(squares) <= kPrecision * seconds;
}

// Stores the times and replaces known ones, so that the times of a plan's ops are from its own
// steps. Adds the wanted ones to `done`.
void keep(const std::map<std::string, profile::Measured>& measured,
          const std::set<std::string>& wanted, profile::TimeDatabase& times, Profiled& done) {
  for (const auto& [key, time] : measured) {
    times.put(key, time);
    if (!wanted.contains(key)) continue;
    done.measured.insert(key);
    done.widest = std::max(done.widest, time.interval / time.seconds);
  }
}

// Measures wanted ops on this rank alone, one program after another, until `end`.
void measure_alone(const compile::Programs& programs, const mesh::Mesh& mesh, const job::Job& job,
                   const std::shared_ptr<exec::Device>& device, DataSource* data,
                   std::set<std::string> wanted, profile::TimeDatabase& times, double end,
                   Profiled& done) {
  for (const auto& program : programs.programs) {
    if (now() >= end) return;
    const auto keys = instances_of(program);
    if (std::none_of(keys.begin(), keys.end(),
                     [&](const auto& key) { return wanted.contains(key); })) {
      continue;
    }
    try {
      SoloRun solo(program, mesh, device, job, data);
      StepTimes steps(solo.program(), mesh, solo.represents());
      solo.run();  // warm-up
      do {
        steps.add(solo.run());
      } while (now() < end && !enough(steps));
      const auto measured = steps.ops();
      keep(measured, wanted, times, done);
      for (const auto& [key, time] : measured) wanted.erase(key);
    } catch (const std::exception& error) {
      log::warn("ops are not measured, their times stay estimates: {}", error.what());
    }
  }
}

std::string print_points(const profile::Points& points) {
  auto list = Json::array();
  for (const auto& [bytes, measured] : points) {
    list.push_back({bytes, measured.seconds, measured.interval, measured.samples});
  }
  return list.dump();
}

profile::Points parse_points(const std::string& text) {
  profile::Points points;
  for (const auto& point : Json::parse(text)) {
    points[point[0].get<double>()] = {point[1].get<double>(), point[2].get<double>(),
                                      point[3].get<int64_t>()};
  }
  return points;
}

class Profiling {
 public:
  Profiling(const job::Job& job, const Connection& connection, profile::TimeDatabase& times,
            const MeasureOptions& options, const cost::Cluster& cluster)
      : job_(job),
        connection_(connection),
        times_(times),
        remeasure_(options.remeasure),
        root_(connection.communicator->rank() == 0),
        group_(everyone(*connection.communicator)),
        cluster_(with_shared_levels(cluster, *group_)),
        end_(now() + options.seconds) {}

  const cost::Cluster& cluster() const { return cluster_; }

  // Returns rank 0's decision on every rank.
  bool all_agree(bool go) { return share_text(root_ && go ? "y" : "n", *group_) == "y"; }

  // Measures ops and collectives within steps of all ranks.
  void programs(const compile::Programs& programs, RankTrainer& trainer,
                const Represents& represents, const mesh::Mesh& mesh, DataSource& data,
                Profiled& done) {
    const auto wanted = missing(programs, times_, remeasure_, done);
    bool all_known = wanted.empty();
    for (const auto& [kind, collectives] : exchanges_of(programs, mesh, cluster_)) {
      if (kind.kind == CollectiveKind::message) continue;
      for (const double bytes : collectives.sizes) {
        all_known = all_known && !remeasure_ && times_.knows(kind, bytes);
      }
    }
    if (!all_agree(!all_known && now() < end_)) return;
    if (!job_.profile.parallel) {
      const auto measure = [&] {
        measure_alone(programs, mesh, job_, connection_.device, &data, wanted, times_, end_, done);
      };
      wait_for_work(*group_, job_, root_ ? std::function<void()>(measure) : nullptr);
      return;
    }
    StepTimes times(trainer.executor().program(), mesh, represents);
    // The first step is a warm-up.
    trainer.step(1, data);
    int64_t step = 1;
    bool more = true;
    std::vector<int64_t> barriers;
    while (more) {
      group_->run({.kind = Collective::Kind::barrier});
      barriers.push_back(exec::now());
      trainer.executor().record(true);
      trainer.step(++step, data);
      times.add(trainer.executor().intervals());
      more = all_agree(now() < end_ && !enough(times));
    }
    const auto texts = gather_texts(print(times, barriers), *group_);
    if (root_) {
      const auto joined = join(texts, times.typical_steps(), cluster_);
      keep(joined.ops, wanted, times_, done);
      for (const auto& [kind, points] : joined.exchanges) times_.put(kind, points);
    }
  }

  // Measures a kind of collective alone, up to the programs' largest within the limits.
  void collective(const ExchangeKind& exchange, const Collectives& collectives, Profiled& done) {
    const bool known = !remeasure_ && times_.collective(exchange, 1).has_value();
    if (!all_agree(!known && now() < end_)) return;
    const auto& members = collectives.ranks;
    const auto ranks = std::ssize(members);
    profile::Points points;
    if (std::ranges::find(members, connection_.tensors->rank()) != members.end()) {
      const auto group = connection_.tensors->group("profile", members);
      const double largest = std::clamp(*collectives.sizes.rbegin(), kSlopeBytes, kMaxBytes);
      for (double bytes = kMinBytes;; bytes = std::min(8 * bytes, largest)) {
        const auto elements = std::max<int64_t>(1, static_cast<int64_t>(bytes) / 4 / ranks) * ranks;
        points[static_cast<double>(elements) * 4] = point(exchange.kind, elements, *group);
        if (bytes >= largest) break;
      }
    }
    const auto texts = gather_texts(print_points(points), *group_);
    if (root_) times_.put(exchange, parse_points(texts[static_cast<size_t>(members.front())]));
    ++done.collectives;
  }

 private:
  // Returns the time on the rank that arrives last, or on a message's receiver. Each round follows
  // work that leaves the caches as a step does.
  profile::Measured point(CollectiveKind kind, int64_t elements, exec::Group& group) {
    const auto place = connection_.device->place();
    auto transfer = transfer_of(kind, elements, group, place);
    const auto other_work = at::ones({kOtherElements}, at::TensorOptions().device(place));
    const auto seconds = at::zeros({1}, at::TensorOptions().device(place).dtype(at::kDouble));
    const bool message = kind == CollectiveKind::message;
    const auto run = [&] {
      // Work of LibTorch and transfers are then on the stream that synchronize() waits for.
      const auto entered = connection_.device->enter();
      other_work.neg_();
      connection_.device->synchronize([] {});
      if (message) group.run({.kind = Collective::Kind::barrier});
      const double begin = now();
      group.start_flat(transfer)->wait();
      connection_.device->synchronize([] {});
      seconds.fill_(now() - begin);
      group.run({.kind = Collective::Kind::all_reduce,
                 .input = seconds,
                 .output = seconds,
                 .reduce = message ? mesh::Reduce::max : mesh::Reduce::min});
      return seconds.item<double>();
    };
    run();
    std::vector<double> samples;
    profile::Measured measured;
    do {  // all ranks have the same samples, hence the same number of rounds
      for (size_t round = 0; round < kRounds; ++round) samples.push_back(run());
      measured = profile::median_of(samples);
    } while (measured.interval > kRoundsPrecision * measured.seconds &&
             samples.size() < kMaxRounds);
    return measured;
  }

  const job::Job& job_;
  const Connection& connection_;
  profile::TimeDatabase& times_;
  bool remeasure_;
  bool root_;
  std::shared_ptr<exec::Group> group_;
  cost::Cluster cluster_;
  double end_;
};

}  // namespace

Profiled profile_programs(const compile::Programs& programs, RankTrainer& trainer,
                          const Represents& represents, const mesh::Mesh& mesh, const job::Job& job,
                          const Connection& connection, DataSource& data,
                          profile::TimeDatabase& times, const MeasureOptions& options,
                          const cost::Cluster& cluster,
                          const std::function<void(int64_t, int64_t)>& progress) {
  const double begin = now();
  Profiled done;
  Profiling profiling(job, connection, times, options, cluster);
  const auto exchanges = exchanges_of(programs, mesh, profiling.cluster());
  const auto all = std::ssize(exchanges) + 1;
  int64_t count = 0;
  // Measured alone first: the times within the programs replace these.
  for (const auto& [kind, collectives] : exchanges) {
    profiling.collective(kind, collectives, done);
    if (progress) progress(++count, all);
  }
  profiling.programs(programs, trainer, represents, mesh, data, done);
  if (progress) progress(all, all);
  done.seconds = now() - begin;
  return done;
}

Profiled profile_ops(const compile::Programs& programs, const mesh::Mesh& mesh, const job::Job& job,
                     const std::shared_ptr<exec::Device>& device, DataSource* data,
                     profile::TimeDatabase& times, double seconds) {
  const double begin = now();
  Profiled done;
  const auto wanted = missing(programs, times, /*remeasure=*/false, done);
  measure_alone(programs, mesh, job, device, data, wanted, times, begin + seconds, done);
  done.seconds = now() - begin;
  return done;
}

void Profiled::add(const Profiled& next) {
  for (const auto& key : next.known) {
    if (!ops.contains(key)) known.insert(key);
  }
  ops.insert(next.ops.begin(), next.ops.end());
  measured.insert(next.measured.begin(), next.measured.end());
  collectives += next.collectives;
  seconds += next.seconds;
  left_out = std::max(left_out, next.left_out);
  widest = std::max(widest, next.widest);
}

std::string describe(const Profiled& done) {
  const auto estimated = std::ranges::count_if(done.ops, [&](const auto& key) {
    return !done.known.contains(key) && !done.measured.contains(key);
  });
  auto text = fmt::format(
      "{} distinct ops: {} measured, {} known before, {} estimated; {} kinds of collectives "
      "measured; {:.1f} s",
      done.ops.size(), done.measured.size(), done.known.size(), estimated, done.collectives,
      done.seconds);
  if (done.left_out > 0) {
    text += fmt::format("; {} repeated blocks were left out", done.left_out);
  }
  if (!done.measured.empty()) {
    text += fmt::format("; the widest 95% interval is {:.1f}% of its time", 100 * done.widest);
  }
  return text + "\n";
}

}  // namespace perigee::train
