// Sets of ranks that run the same program, found without making each rank's graph.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "compile/rank.h"
#include "compile/ranks/signatures.h"

namespace perigee::compile {

namespace {

using graph::Input;

// Returns a hash of everything in the graph that memory and time depend on: not the start of a
// rank's random block, nor the peers of its messages, whose `streams` count by position.
std::string shape_hash(graph::Graph graph, const std::vector<Stream>& streams) {
  for (auto& node : graph.nodes) {
    std::erase_if(node.args, [](const auto& arg) { return arg.first == "begin"; });
    if (streams.empty() || (node.op != "comm::send" && node.op != "comm::receive")) continue;
    for (auto& [name, arg] : node.args) {
      if (name != "axis") continue;
      const auto own = std::find(streams.begin(), streams.end(),
                                 Stream::parse(std::get<std::string>(arg)));
      arg = "message " + std::to_string(own - streams.begin());
    }
  }
  return graph::structural_hash(graph);
}

// Returns by rank its duties for its stage, as text: contributing to sums over all stages, and its
// box of each parameter that several stages have.
std::map<int64_t, std::string> duties_of(const Views& views) {
  std::map<int64_t, std::string> duties;
  const auto& mesh = views.plan().mesh;
  for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
    const auto ranks = mesh::ranks_of_stage(mesh, stage);
    const auto& common = views.common(ranks.front());
    const auto& own = views.plan(ranks.front()).mesh;
    for (const auto rank : ranks) duties[rank] = rank == ranks.front() ? " first" : "";
    for (const auto& input : common.graph.inputs) {
      if (input.kind != Input::Kind::parameter || !common.inputs->is_shared(input.name) ||
          !common.inputs->has(input.name, ranks.front())) {
        continue;
      }
      std::set<std::vector<std::pair<int64_t, int64_t>>> boxes;
      for (const auto rank : ranks) {
        std::vector<std::pair<int64_t, int64_t>> box;
        for (const auto& range :
             mesh::local_ranges(common.graph.type(input.value).shape,
                                common.sharding.values[input.value.index], own, rank)) {
          box.emplace_back(range.begin, range.length);
        }
        duties[rank] += boxes.insert(std::move(box)).second ? " b" : " -";
      }
    }
  }
  return duties;
}

// The ranks of stages whose submeshes have the same sizes, as ranks of the first of these stages;
// with equal submeshes, all ranks.
struct View {
  View(const Common& common, const plan::Plan& plan, std::vector<int64_t> stage)
      : common(common),
        plan(plan),
        ranks(std::move(stage)),
        signatures(plan, common.sharding, common.graph) {
    std::shared_ptr<WholeGraphs> first;
    signatures.find_places([&](int64_t rank) {
      const auto made = std::make_shared<WholeGraphs>(common, plan, rank);
      if (rank == ranks.front()) first = made;
      return shape_hash(made->get(true).graph, {});
    });
    if (first) graphs.emplace(signatures.without_stage(ranks.front()), first);
  }
  // Returns the graphs of all stages of one of `ranks`.
  WholeGraphs& whole(int64_t rank) {
    auto& whole = graphs[signatures.without_stage(rank)];
    if (!whole) whole = std::make_shared<WholeGraphs>(common, plan, rank);
    return *whole;
  }

  const Common& common;
  const plan::Plan& plan;
  const std::vector<int64_t> ranks;
  Signatures signatures;
  // By Signatures::without_stage.
  std::map<std::string, std::shared_ptr<WholeGraphs>> graphs;
};

class RankComparison {
 public:
  explicit RankComparison(const Views& views) : views_(views) {
    const auto& mesh = views.plan().mesh;
    if (!mesh.is_ragged()) return;
    messages_ = messages_of(*views.common(mesh::ranks(mesh).front()).transfers);
    duties_ = duties_of(views);
  }

  EquivalentRanks run() {
    const auto& mesh = views_.plan().mesh;
    if (!mesh.is_ragged()) {
      add_stage(mesh::ranks(mesh), false);
    }
    for (int64_t stage = 0; stage < std::ssize(mesh.stages); ++stage) {
      add_stage(mesh::ranks_of_stage(mesh, stage), true);
    }
    return std::move(result_);
  }

 private:
  // Adds the ranks of a stage (`ragged`), or of a mesh with equal submeshes.
  void add_stage(const std::vector<int64_t>& ranks, bool ragged) {
    const auto& common = views_.common(ranks.front());
    auto& view =
        seen_.try_emplace(&common, common, views_.plan(ranks.front()), ranks).first->second;
    std::map<std::string, size_t> by_signature;  // index into `differ`
    std::vector<size_t> representative;
    std::vector<One> differ;
    for (size_t place = 0; place < ranks.size(); ++place) {
      const auto rank = ranks[place], twin = view.ranks[place];
      const auto [known, added] = by_signature.try_emplace(
          (ragged ? view.signatures.without_stage(twin) : view.signatures.with_stage(twin)) +
              messages_[rank].text + duties_[rank],
          differ.size());
      if (added) differ.push_back({rank, &view.whole(twin)});
      representative.push_back(known->second);
    }
    in_parallel(differ.size(), [&](size_t k) {
      auto& one = differ[k];
      one.local = localize(common, views_.plan(one.rank), *one.whole, one.rank);
      one.hash = shape_hash(one.local.graph.graph, messages_.at(one.rank).streams) +
                 duties_.at(one.rank);
    });
    std::map<std::string, int64_t> by_hash;  // the first rank
    for (auto& one : differ) {
      const auto [same, other] = by_hash.try_emplace(one.hash, one.rank);
      if (other) result_.locals.emplace(one.rank, std::move(one.local));
      one.first = same->second;
    }
    for (size_t place = 0; place < ranks.size(); ++place) {
      result_.ranks.push_back(ranks[place]);
      result_.representative.push_back(differ[representative[place]].first);
      if (ragged) result_.streams.push_back(messages_[ranks[place]].streams);
    }
  }

  // A rank that may differ from others.
  struct One {
    int64_t rank;
    WholeGraphs* whole;
    Local local = {};
    std::string hash = {};
    int64_t first = 0;  // of the ranks equivalent to it
  };

  const Views& views_;
  std::map<int64_t, RankMessages> messages_;  // by rank
  std::map<int64_t, std::string> duties_;
  std::map<const Common*, View> seen_;
  EquivalentRanks result_;
};

}  // namespace

EquivalentRanks find_equivalent_ranks(const Views& views) { return RankComparison(views).run(); }

}  // namespace perigee::compile
