// pipeline_parallel: the layers spread over stages, microbatches running through them by a
// schedule.
#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/match.h"
#include "cost/schedule.h"
#include "graph/flops.h"
#include "methods/method.h"
#include "methods/names.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

using graph::Graph;

// A run of the forward pass that is not cut: from a block's first op to the next block's.
struct Block {
  std::string scope;
  double work = 0;  // floating-point operations, backward too
};

// The blocks' scopes, in the order in which the forward pass comes to them.
std::vector<Block> blocks_of(const Graph& graph, const std::vector<std::string>& patterns) {
  std::vector<Block> blocks;
  std::map<std::string, size_t> known;
  double before = 0;
  size_t current = 0;
  std::vector<size_t> block_of(graph.nodes.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    const double work = graph::flops_of(graph, node);
    if (node.phase == graph::Phase::backward) {
      if (node.forward_node >= 0 && !blocks.empty()) {
        blocks[block_of[node.forward_node]].work += work;
      }
      continue;
    }
    for (const auto& scope : graph.scopes) {
      const bool here = graph::contains_scope(scope.path, node.scope) &&
                        std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) {
                          return matches(pattern, scope.path) || pattern == scope.type;
                        });
      if (!here) continue;
      if (known.emplace(scope.path, blocks.size()).second) {
        current = blocks.size();
        blocks.push_back({scope.path});
      }
      break;
    }
    block_of[n] = current;
    (blocks.empty() ? before : blocks[current].work) += work;
  }
  if (!blocks.empty()) blocks.front().work += before;
  return blocks;
}

// Cuts the blocks into parts so that the one with the most work has as little as can be; returns
// the first block of each but the first.
std::vector<std::string> balanced(const std::vector<Block>& blocks, int64_t parts) {
  const auto count = std::ssize(blocks);
  std::vector<double> sum(count + 1);
  for (int64_t i = 0; i < count; ++i) sum[i + 1] = sum[i] + blocks[i].work;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // most[k][i]: of the best way to cut the first i blocks into k parts.
  std::vector<std::vector<double>> most(parts + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<int64_t>> from(parts + 1, std::vector<int64_t>(count + 1));
  most[0][0] = 0;
  for (int64_t k = 1; k <= parts; ++k) {
    for (int64_t i = k; i <= count; ++i) {
      for (int64_t j = k - 1; j < i; ++j) {
        const double cost = std::max(most[k - 1][j], sum[i] - sum[j]);
        if (cost >= most[k][i]) continue;
        most[k][i] = cost;
        from[k][i] = j;
      }
    }
  }
  std::vector<std::string> starts;
  for (int64_t k = parts, i = count; k > 1; --k) {
    i = from[k][i];
    starts.insert(starts.begin(), blocks[i].scope);
  }
  return starts;
}

class PipelineParallel : public Method {
 public:
  std::string_view name() const override { return "pipeline_parallel"; }
  std::string_view doc() const override {
    return "Spreads the layers over the stages of an axis of the mesh; microbatches run through "
           "them as a schedule says. Without starts the parts are cut between blocks so that the "
           "slowest has as little work as can be.";
  }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"axis", "string", "the axis; default `pipe`"},
        {"schedule", "string",
         "gpipe, 1f1b (default), eager_1f1b, interleaved, looped_bfs, zb1p, zb2p, zbv, v_half, "
         "v_min or dualpipe_v"},
        {"chunks", "integer",
         "parts of a stage; default 2 for interleaved, looped_bfs, zbv, v_half, v_min and "
         "dualpipe_v, else 1"},
        {"starts", "list",
         "the scopes at which the parts behind the first begin (`blocks.4`), one less than parts"},
        {"blocks", "any",
         "scopes or module types between which parts may be cut; default the longest row of "
         "numbered modules (`blocks.*`)"},
        {"group", "integer", "interleaved: microbatches that run together; default one a stage"},
        {"extra", "integer", "1f1b: forwards in flight above what 1f1b has; default 0"},
        {"costs", "list",
         "{forward, input gradient, weight gradient}: their times, for schedules that are found by "
         "a search; default {1, 1, 1}"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    const auto& fields = config.fields;
    const auto& graph = *request.graph;
    plan::Pipeline pipeline;
    pipeline.axis = fields.value("axis", std::string("pipe"));
    const int axis = plan.mesh.find(pipeline.axis);
    if (axis < 0) {
      std::vector<std::string> axes;
      for (const auto& a : plan.mesh.axes) axes.push_back(a.name);
      fail("pipeline_parallel", "stages stand on an axis of the mesh ({}), but got \"{}\"{}",
           fmt::join(axes, ", "), pipeline.axis, did_you_mean(pipeline.axis, axes));
    }
    const auto stages = plan.mesh.axes[axis].size;
    pipeline.schedule = fields.value("schedule", pipeline.schedule);
    pipeline.chunks = chunks_of(fields, pipeline.schedule);
    pipeline.group = count_of(fields, "group", 0);
    pipeline.extra = count_of(fields, "extra", 0);
    set_costs(pipeline, fields);
    if (stages == 1) {
      plan.decisions.push_back({"pipeline_parallel", fmt::format("axis {} has one rank: there is "
                                                                 "one stage",
                                                                 pipeline.axis)});
      return;
    }
    const auto parts = stages * pipeline.chunks;
    if (fields.contains("starts")) {
      if (fields.contains("blocks")) {
        fail("pipeline_parallel", "either starts or blocks says where parts begin, but got both");
      }
      pipeline.starts = texts(fields["starts"], "pipeline_parallel", "starts");
      if (std::ssize(pipeline.starts) + 1 != parts) {
        fail("pipeline_parallel",
             "starts names where each part behind the first begins, {} for {} stages of {} part{}, "
             "but got {}",
             parts - 1, stages, pipeline.chunks, pipeline.chunks == 1 ? "" : "s",
             pipeline.starts.size());
      }
    } else {
      pipeline.starts = find_starts(graph, fields, stages, pipeline.chunks);
    }
    if (plan.microbatches == 0 && request.micro_batch == 0)
      default_microbatches(plan, request, stages);
    plan.decisions.push_back(
        {"pipeline_parallel",
         fmt::format("the layers are cut into {} parts for {} stages, at {}; microbatches run "
                     "through them by {}",
                     parts, stages, fmt::join(pipeline.starts, ", "), pipeline.schedule)});
    plan.pipeline = std::move(pipeline);
  }

 private:
  static int64_t count_of(const Json& fields, const char* field, int64_t otherwise) {
    if (!fields.contains(field)) return otherwise;
    const auto value = fields[field].get<int64_t>();
    if (value < 0) fail("pipeline_parallel", "{} must be at least 0, but got {}", field, value);
    return value;
  }

  static int64_t chunks_of(const Json& fields, const std::string& schedule) {
    const auto names = schedule_names();
    const std::vector<std::string> known(names.begin(), names.end());
    if (std::find(known.begin(), known.end(), schedule) == known.end()) {
      fail("pipeline_parallel", "schedules are {}, but got \"{}\"{}", fmt::join(known, ", "),
           schedule, did_you_mean(schedule, known));
    }
    if (fields.contains("chunks")) {
      const auto chunks = fields["chunks"].get<int64_t>();
      if (chunks < 1) {
        fail("pipeline_parallel", "chunks must be at least 1, but got {}", chunks);
      }
      return chunks;
    }
    return default_chunks(schedule);
  }

  static void set_costs(plan::Pipeline& pipeline, const Json& fields) {
    if (!fields.contains("costs")) return;
    const auto& costs = fields["costs"];
    const bool fits = costs.size() == 3 && std::all_of(costs.begin(), costs.end(), [](auto& c) {
                        return c.is_number() && c.template get<double>() > 0;
                      });
    if (!fits) {
      fail("pipeline_parallel", "costs are three numbers above 0, but got {}", costs.dump());
    }
    pipeline.forward = costs[0].get<double>();
    pipeline.backward = costs[1].get<double>();
    pipeline.weights = costs[2].get<double>();
  }

  static std::vector<std::string> find_starts(const Graph& graph, const Json& fields,
                                              int64_t stages, int64_t chunks) {
    std::vector<std::string> patterns;
    if (fields.contains("blocks")) {
      patterns = texts(fields["blocks"], "pipeline_parallel", "blocks");
    } else if (const auto row = longest_row(graph); !row.empty()) {
      patterns = {row};
    }
    const auto blocks = blocks_of(graph, patterns);
    if (std::ssize(blocks) < stages * chunks) {
      fail("pipeline_parallel",
           "{} stages of {} part{} need as many blocks, but {} has {}: name starts or blocks, or "
           "make the axis smaller",
           stages, chunks, chunks == 1 ? "" : "s",
           patterns.empty() ? "the model" : patterns.front(), blocks.size());
    }
    return balanced(blocks, stages * chunks);
  }

  // As many as stages, where nothing else says how many and the batch divides.
  static void default_microbatches(plan::Plan& plan, const Request& request, int64_t stages) {
    int64_t data = 1;
    for (const auto& axis : mesh::split_axes(plan.batch_axes)) data *= plan.mesh.size_of(axis);
    if (request.global_batch % (stages * data) == 0) plan.microbatches = stages;
  }
};

}  // namespace

std::shared_ptr<const Method> pipeline_parallel() { return std::make_shared<PipelineParallel>(); }

}  // namespace perigee::methods
