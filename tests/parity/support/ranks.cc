#include "tests/parity/support/ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/memory/dry_run.h"
#include "exec/op_threads.h"
#include "lua/strategy.h"
#include "tests/parity/support/memory.h"
#include "tests/parity/support/steps.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Program;
using Kind = compile::Binding::Kind;

at::Tensor piece(at::Tensor whole, const std::vector<mesh::Range>& ranges) {
  for (size_t d = 0; d < ranges.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].length);
  }
  return whole;
}

}  // namespace

std::optional<compile::OpTrace> DryRuns::find(const compile::OpInstance& instance) {
  const auto [entry, added] = known_.try_emplace(compile::key(instance));
  if (added) entry->second = exec::record_trace(instance);
  return entry->second;
}

Program compile_rank(const Given& given, const plan::Plan& plan, const compile::StepSpec& spec,
                     int64_t rank) {
  static DryRuns traces;
  const exec::OpThreads one(1);
  return compile::compile(given.graph, plan, spec, rank, traces);
}

int64_t count(const Program& program, const std::string& op, const std::string& section) {
  int64_t found = 0;
  for (const auto& s : program.sections) {
    if (!section.empty() && s.name() != section) continue;
    found += std::ranges::count(s.instructions, op, &compile::Instruction::op);
  }
  return found;
}

std::string find_difference(const Outcome& a, const Outcome& b) {
  for (size_t k = 0; k < a.losses.size(); ++k) {
    if (a.losses[k] != b.losses[k]) return fmt::format("loss {}", k);
    if (a.norms[k] != b.norms[k]) return fmt::format("norm {}", k);
  }
  if (a.tensors.size() != b.tensors.size()) return "the number of tensors";
  for (auto x = a.tensors.begin(), y = b.tensors.begin(); x != a.tensors.end(); ++x, ++y) {
    if (x->first != y->first || !at::equal(x->second.first, y->second.first)) return x->first;
  }
  return "";
}

void set_weights(exec::Executor& executor, const Given& given) {
  for (const auto& binding : executor.program().bindings) {
    if (binding.kind != Kind::parameter && binding.kind != Kind::buffer) continue;
    executor.tensor(binding).copy_(piece(given.inputs.at(binding.name), binding.ranges));
  }
}

Outcome run_steps(exec::Executor& executor, const Given& given, int64_t steps) {
  const auto& program = executor.program();
  std::map<std::string, double> rates{{"lr.0", 0.01}};
  for (const auto& binding : program.bindings) {
    if (binding.name.starts_with("lr.")) rates[binding.name] = 0.01;
  }
  Outcome outcome;
  for (int64_t step = 1; step <= steps; ++step) {
    executor.run({.step = step, .scalars = rates, .data = [&](const std::string& name, int64_t m) {
                    const auto& all = given.inputs.at(name);
                    const auto copies = program.model_copies;
                    const auto rows = all.size(0) / program.microbatches / copies;
                    return all.narrow(0, (m * copies + program.model_copy) * rows, rows);
                  }});
    outcome.losses.push_back(executor.tensor(Kind::result, "loss").item<double>());
    outcome.norms.push_back(executor.tensor(Kind::result, "grad_norm").item<double>());
  }
  return outcome;
}

void add_tensors(Outcome& outcome, const exec::Executor& executor) {
  for (const auto& binding : executor.program().bindings) {
    if (binding.kind == Kind::parameter || binding.kind == Kind::buffer ||
        binding.kind == Kind::state) {
      outcome.tensors.emplace(binding.name,
                              std::pair(executor.tensor(binding).clone(), binding.ranges));
    }
  }
}

Outcome run_rank(const Given& given, const Program& program, const mesh::Mesh& mesh,
                 exec::Communicator& communicator, int owner, int64_t steps) {
  count_memory_for(owner);
  exec::Executor executor(program, communicator, mesh, {.seed = 9});
  set_weights(executor, given);
  reset_counted_peak(owner);
  auto outcome = run_steps(executor, given, steps);
  outcome.counted = counted_peak(owner);
  add_tensors(outcome, executor);
  return outcome;
}

std::string compare(const Outcome& one, const Outcome& rank, double tolerance) {
  const auto distance = [](double a, double b) {
    return std::abs(a - b) / std::max(1.0, std::abs(a));
  };
  for (size_t k = 0; k < one.losses.size(); ++k) {
    if (!(distance(one.losses[k], rank.losses[k]) <= tolerance))
      return fmt::format("loss {}: {} and {}", k, one.losses[k], rank.losses[k]);
    if (!(distance(one.norms[k], rank.norms[k]) <= tolerance))
      return fmt::format("norm {}: {} and {}", k, one.norms[k], rank.norms[k]);
  }
  for (const auto& [name, part] : rank.tensors) {
    const auto wrong = difference(
        part.first, piece(one.tensors.find(name)->second.first, part.second), tolerance);
    if (!wrong.empty()) return name + ": " + wrong;
  }
  return "";
}

double mean_distance(const Outcome& one, const Outcome& rank) {
  double sum = 0;
  int64_t count = 0;
  for (const auto& [name, part] : rank.tensors) {
    if (name.find(':') != std::string::npos || !part.first.is_floating_point()) continue;
    const auto expected = piece(one.tensors.find(name)->second.first, part.second);
    const auto apart = part.first.to(at::kDouble) - expected.to(at::kDouble);
    sum += apart.abs().sum().item<double>();
    count += apart.numel();
  }
  return sum / static_cast<double>(std::max<int64_t>(1, count));
}

const std::vector<std::shared_ptr<const methods::Method>>& shipped_in_lua() {
  static lua::StrategyScript script("strategies/data_parallel/local_sgd.lua");
  static const auto methods = [] {
    std::vector<std::shared_ptr<const methods::Method>> found;
    for (const auto& use : script.resolve({}, {}).methods) {
      if (use.method->name() == "local_sgd") found.push_back(use.method);
    }
    return found;
  }();
  return methods;
}

plan::Plan plan_of(const Given& given, const std::string& strategy, int64_t rows) {
  const auto data = methods::Json::parse(strategy);
  const bool in_lua = strategy.find("local_sgd") != strategy.npos;
  return methods::make_plan(in_lua ? methods::from_json(data, "test", shipped_in_lua())
                                   : methods::from_json(data, "test"),
                            {.graph = &given.graph,
                             .global_batch = rows,
                             .eight_bits = strategy.find(R"("native")") != strategy.npos});
}

std::string strategy_on(const std::string& axes, const std::string& methods, int64_t microbatches) {
  return fmt::format(
      R"([["parallel_mode", [{}]], ["gradient_accumulation", {{"microbatches": {}}}]{}])", axes,
      microbatches, methods.empty() ? "" : ", " + methods);
}

std::string axis_of(const compile::Instruction& instruction) {
  for (const auto& [name, arg] : instruction.args) {
    if (name == "axis") return std::get<std::string>(arg);
  }
  return "";
}

std::map<std::string, int> exchanges_of(const compile::Program& program) {
  std::map<std::string, int> found;
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions) {
      if (i.kind != compile::Instruction::Kind::collective || i.op == "comm::all_reduce") continue;
      ++found[fmt::format("{} {}", i.phase == graph::Phase::forward ? "forward" : "backward",
                          i.op.substr(6))];
    }
  }
  return found;
}

std::vector<Outcome> train(const Given& given, const plan::Plan& plan,
                           const std::function<void(compile::Program&)>& edit,
                           const compile::StepSpec& spec, int64_t steps) {
  exec::set_op_threads(1);  // as ranks: some ops allocate by the number of threads
  plan::verify(plan, given.graph);
  static DryRuns traces;
  std::vector<compile::Program> programs;
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) {
    programs.push_back(compile::compile(given.graph, plan, spec, rank, traces));
    compile::verify(programs.back());
    if (edit) edit(programs.back());
  }
  std::vector<Outcome> outcomes(programs.size());
  exec::run_ranks(std::ssize(programs),
                  [&](exec::Communicator& c) {
                    const auto r = static_cast<size_t>(c.rank());
                    outcomes[r] = run_rank(given, programs[r], plan.mesh, c, static_cast<int>(r),
                                           steps);
                  },
                  {.timeout = std::chrono::seconds(20)});
  return outcomes;
}

std::string compare_memory(const Given& given, const plan::Plan& plan,
                           const std::vector<Outcome>& ranks) {
  DryRuns traces;
  const auto predicted =
      compile::predict_memory(given.graph, plan, {.clip_norm = 0.5}, traces).peak_bytes;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (predicted[r] != ranks[r].counted) {
      return fmt::format("rank {}: predicted {} bytes, counted {}", r, predicted[r],
                         ranks[r].counted);
    }
  }
  return "";
}

std::string find_missing(const Outcome& one, const std::vector<Outcome>& ranks) {
  for (const auto& [name, whole] : one.tensors) {
    const auto held = at::zeros(whole.first.sizes(), at::kBool);
    for (const auto& rank : ranks) {
      const auto [begin, end] = rank.tensors.equal_range(name);
      for (auto part = begin; part != end; ++part) piece(held, part->second.second).fill_(true);
    }
    if (!held.all().item<bool>()) return "no rank holds all of " + name;
  }
  return "";
}

std::string compare(const Outcome& one, const std::vector<Outcome>& ranks, double tolerance) {
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto wrong = compare(one, ranks[r], tolerance);
    if (!wrong.empty()) return fmt::format("rank {}: {}", r, wrong);
  }
  return find_missing(one, ranks);
}

}  // namespace perigee::parity
