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
#include "plan/pipeline.h"

namespace perigee::methods {
namespace {

using graph::Graph;

// A run of the forward pass that is not cut: from a block's first op to the next block's.
struct Block {
  std::string scope;
  double work = 0;  // floating-point operations, backward too
};

// The blocks in the order in which the forward pass comes to them. `block_of`: by node of the
// forward pass.
std::vector<Block> blocks_of(const Graph& graph, const std::vector<std::string>& patterns,
                             std::vector<size_t>& block_of) {
  std::vector<Block> blocks;
  std::map<std::string, size_t> known;
  double before = 0;
  size_t current = 0;
  block_of.assign(graph.nodes.size(), 0);
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

// Has a block's work be 1, where all parts can have as many blocks, else the ops of its forward
// pass.
void count_ops(const Graph& graph, const std::vector<size_t>& block_of, int64_t parts,
               std::vector<Block>& blocks) {
  const bool alike = blocks.size() >= 4 && std::ssize(blocks) % parts == 0;
  for (auto& block : blocks) block.work = alike ? 1 : 0;
  for (size_t n = 0; n < graph.nodes.size() && !alike; ++n) {
    if (graph.nodes[n].phase == graph::Phase::forward) blocks[block_of[n]].work += 1;
  }
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

// Returns by [first][behind] the bytes that blocks first, ..., behind - 1 of the forward pass read
// of what earlier ones made of the data.
std::vector<std::vector<double>> entering(const Graph& graph, const std::vector<size_t>& block_of,
                                          size_t count) {
  std::vector<bool> of_data(graph.values.size());
  for (const auto& input : graph.inputs) {
    of_data[input.value.index] = input.kind == graph::Input::Kind::data;
  }
  std::vector<std::vector<size_t>> readers(graph.values.size());  // blocks, ascending
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto& node = graph.nodes[n];
    if (node.phase != graph::Phase::forward) continue;
    bool data = false;
    node.each_operand([&](graph::ValueId v) {
      data = data || of_data[v.index];
      readers[v.index].push_back(block_of[n]);
    });
    for (auto v : node.outputs) {
      if (v.defined()) of_data[v.index] = data;
    }
  }
  std::vector<std::vector<double>> bytes(count + 1, std::vector<double>(count + 1));
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const auto producer = graph.values[v].producer;
    if (producer < 0 || !of_data[v] || readers[v].empty()) continue;
    if (graph.nodes[producer].phase != graph::Phase::forward) continue;
    const auto size = static_cast<double>(graph.values[v].type.bytes());
    for (size_t first = block_of[producer] + 1; first <= readers[v].back(); ++first) {
      const auto reader = *std::lower_bound(readers[v].begin(), readers[v].end(), first);
      for (size_t behind = reader + 1; behind <= count; ++behind) bytes[first][behind] += size;
    }
  }
  return bytes;
}

// Cuts the blocks into parts none of which has more than (1 + tolerance) times its share of the
// work: so that the part that reads the most bytes of earlier parts reads as few as can be, then
// that all together do, then that parts have as many blocks as others (Alpa's clustering of
// operators into layers, Zheng et al. 2022). Returns the first block of each but the first.
std::vector<std::string> least_sent(const std::vector<Block>& blocks,
                                    const std::vector<std::vector<double>>& bytes, int64_t parts,
                                    double tolerance) {
  const auto count = std::ssize(blocks);
  std::vector<double> sum(count + 1);
  for (int64_t i = 0; i < count; ++i) sum[i + 1] = sum[i] + blocks[i].work;
  const double most_work = (1 + tolerance + 1e-9) * sum[count] / static_cast<double>(parts);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  struct Best {
    double most = kNever, all = kNever, squares = kNever;
    int64_t from = 0;
  };
  // best[k][i]: of the first i blocks in k parts, none of which reads more than `limit` bytes.
  std::vector<std::vector<Best>> best;
  const auto search = [&](double limit, auto better) {
    best.assign(parts + 1, std::vector<Best>(count + 1));
    best[0][0] = {0, 0, 0, 0};
    for (int64_t k = 1; k <= parts; ++k) {
      for (int64_t i = k; i <= count; ++i) {
        for (int64_t j = k - 1; j < i; ++j) {
          const auto& before = best[k - 1][j];
          const double read = bytes[j][i];
          if (before.most == kNever || sum[i] - sum[j] > most_work || read > limit) continue;
          const auto length = static_cast<double>(i - j);
          const Best now{std::max(before.most, read), before.all + read,
                         before.squares + length * length, j};
          if (better(now, best[k][i])) best[k][i] = now;
        }
      }
    }
    return best[parts][count].most;
  };
  const double least = search(kNever, [](const Best& a, const Best& b) { return a.most < b.most; });
  if (least == kNever) {
    fail("pipeline_parallel",
         "tolerance = {} leaves parts at most {:.4g} times their share of the work, but {} blocks "
         "cannot be cut into {} such parts: raise it",
         tolerance, 1 + tolerance, count, parts);
  }
  search(least, [](const Best& a, const Best& b) {
    return std::pair(a.all, a.squares) < std::pair(b.all, b.squares);
  });
  std::vector<std::string> starts;
  for (int64_t k = parts, i = count; k > 1; --k) {
    i = best[k][i].from;
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
           "slowest has as little work as can be, or with tolerance so that little is sent.";
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
        {"holds", "list",
         "with starts: of each part scopes or module types that begin in it; anything else is an "
         "error"},
        {"blocks", "any",
         "scopes or module types between which parts may be cut; default the longest row of "
         "numbered modules (`blocks.*`), or all modules where none are numbered"},
        {"balance", "string",
         "what parts have alike: work (default), or count, as EPL's automatic pipeline: blocks, "
         "where "
         "there are four or more that divide over the parts, else ops"},
        {"tolerance", "number",
         "parts may have so much more than their share of the work (0.5: half as much again) where "
         "fewer bytes are then sent between them"},
        {"group", "integer", "interleaved: microbatches that run together; default one a stage"},
        {"extra", "integer", "1f1b: forwards in flight above what 1f1b has; default 0"},
        {"dtype", "string",
         "what stages send is cast to it, and back where it comes: fp16, bf16, float32 or float64; "
         "default as it is, which alone is what one device computes"},
        {"costs", "list",
         "{forward, input gradient, weight gradient, message}: the times of a stage and of what it "
         "sends, for schedules that are found by a search; default {1, 1, 1, 0}"}};
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
    if (fields.contains("dtype")) pipeline.dtype = wire_dtype(fields["dtype"].get<std::string>());
    if (stages == 1) {
      plan.decisions.push_back({"pipeline_parallel", fmt::format("axis {} has one rank: there is "
                                                                 "one stage",
                                                                 pipeline.axis)});
      return;
    }
    const auto parts = stages * pipeline.chunks;
    if (fields.contains("starts")) {
      for (const char* other : {"blocks", "balance", "tolerance"}) {
        if (!fields.contains(other)) continue;
        fail("pipeline_parallel", "either starts or {} says where parts begin, but got both",
             other);
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
    check_holds(graph, pipeline, fields);
    if (plan.microbatches == 0 && request.micro_batch == 0)
      default_microbatches(plan, request, stages);
    plan.decisions.push_back(
        {"pipeline_parallel",
         fmt::format("the layers are cut into {} parts for {} stages, at {}; microbatches run "
                     "through them by {}",
                     parts, stages, fmt::join(pipeline.starts, ", "), pipeline.schedule)});
    if (pipeline.dtype) {
      plan.decisions.push_back(
          {"pipeline_parallel",
           fmt::format("what stages send is {} on its way", graph::name_of(*pipeline.dtype))});
    }
    plan.pipeline = std::move(pipeline);
  }

 private:
  static graph::DType wire_dtype(const std::string& text) {
    if (text == "fp16") return graph::DType::float16;
    if (text == "bf16") return graph::DType::bfloat16;
    const auto dtype = graph::dtype_of(text);
    if (!dtype || !graph::is_floating(*dtype) || graph::size_of(*dtype) < 2) {
      fail("pipeline_parallel", "dtype is fp16, bf16, float32 or float64, but got \"{}\"", text);
    }
    return *dtype;
  }

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
    bool fits = costs.size() == 3 || costs.size() == 4;
    for (size_t i = 0; fits && i < costs.size(); ++i) {
      fits = costs[i].is_number() && (costs[i].get<double>() > 0 || (i == 3 && costs[i] == 0));
    }
    if (!fits) {
      fail("pipeline_parallel",
           "costs are three numbers above 0, and one of at least 0 for messages, but got {}",
           costs.dump());
    }
    pipeline.forward = costs[0].get<double>();
    pipeline.backward = costs[1].get<double>();
    pipeline.weights = costs[2].get<double>();
    if (costs.size() == 4) pipeline.transfer = costs[3].get<double>();
  }

  static void check_holds(const Graph& graph, const plan::Pipeline& pipeline, const Json& fields) {
    if (!fields.contains("holds")) return;
    const auto& holds = fields["holds"];
    const auto parts = plan::parts_of(graph, pipeline);
    if (!fields.contains("starts") || holds.size() != pipeline.starts.size() + 1) {
      fail("pipeline_parallel",
           "holds names what each part of starts holds, {} lists, but got {} and {}",
           pipeline.starts.size() + 1, holds.size(),
           fields.contains("starts") ? "starts" : "no starts");
    }
    for (size_t part = 0; part < holds.size(); ++part) {
      const auto names = texts(holds[part], "pipeline_parallel", "holds");
      if (names.empty()) continue;
      for (const auto& scope : matching_scopes(graph, names, "pipeline_parallel")) {
        const auto in = [&](const auto& node) {
          return node.scope == scope || node.scope.starts_with(scope + ".");
        };
        const auto first = std::find_if(graph.nodes.begin(), graph.nodes.end(), in);
        if (first == graph.nodes.end()) continue;
        const auto at = parts[static_cast<size_t>(first - graph.nodes.begin())];
        if (at == plan::kEveryPart || at == static_cast<int>(part)) continue;
        fail("pipeline_parallel",
             "part {} is to hold \"{}\", but that begins in part {}: parts hold what the forward "
             "pass comes to between their starts ({})",
             part, scope, at, fmt::join(pipeline.starts, ", "));
      }
    }
  }

  static std::vector<std::string> find_starts(const Graph& graph, const Json& fields,
                                              int64_t stages, int64_t chunks) {
    std::vector<std::string> patterns;
    if (fields.contains("blocks")) {
      patterns = texts(fields["blocks"], "pipeline_parallel", "blocks");
    } else if (const auto row = longest_row(graph); !row.empty()) {
      patterns = {row};
    } else {
      patterns = innermost_modules(graph);
    }
    std::vector<size_t> block_of;
    auto blocks = blocks_of(graph, patterns, block_of);
    if (std::ssize(blocks) < stages * chunks) {
      fail("pipeline_parallel",
           "{} stages of {} part{} need as many blocks, but {} has {}: name starts or blocks, or "
           "make the axis smaller",
           stages, chunks, chunks == 1 ? "" : "s",
           patterns.empty() ? "the model" : patterns.front(), blocks.size());
    }
    const auto balance = fields.value("balance", std::string("work"));
    if (balance == "count") {
      count_ops(graph, block_of, stages * chunks, blocks);
    } else if (balance != "work") {
      fail("pipeline_parallel", "balance is work or count, but got \"{}\"{}", balance,
           did_you_mean(balance, std::vector<std::string>{"work", "count"}));
    }
    if (!fields.contains("tolerance")) return balanced(blocks, stages * chunks);
    const auto tolerance = fields["tolerance"].get<double>();
    if (!(tolerance >= 0)) {
      fail("pipeline_parallel", "tolerance must be at least 0, but got {}", tolerance);
    }
    return least_sent(blocks, entering(graph, block_of, blocks.size()), stages * chunks, tolerance);
  }

  // As many as stages, where nothing else says how many and the batch divides.
  static void default_microbatches(plan::Plan& plan, const Request& request, int64_t stages) {
    const auto data = plan::batch_ranks(plan);
    if (request.round || request.global_batch % (stages * data) == 0) plan.microbatches = stages;
  }
};

}  // namespace

std::shared_ptr<const Method> pipeline_parallel() { return std::make_shared<PipelineParallel>(); }

}  // namespace perigee::methods
