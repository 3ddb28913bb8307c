#include "train/commands/gradient_check.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "base/log_format.h"
#include "data/data.h"
#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"
#include "profile/database.h"
#include "profile/traces.h"
#include "train/measure/profile_path.h"
#include "train/ranks/share.h"
#include "train/step/initial_values.h"
#include "train/step/step_data.h"
#include "train/step/step_scalars.h"
#include "train/step/step_spec.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

// Differences of gradients that are smaller than this share of the largest gradient are relative to
// that share: a gradient that is zero up to rounding has no meaningful relative difference.
constexpr double kSmallest = 1e-4;

double default_tolerance(const plan::Plan& plan, const graph::Graph& graph) {
  bool low = plan.precision.dtype || plan.communication.reduce_dtype, single = false;
  for (const auto& input : graph.inputs) {
    if (input.kind != graph::Input::Kind::parameter) continue;
    const auto dtype = graph.type(input.value).dtype;
    low = low || graph::size_of(dtype) < 4;
    single = single || dtype == graph::DType::float32;
  }
  return low ? 0.1 : single ? 1e-3 : 1e-8;
}

// The inputs of all programs of the check.
struct CheckedStep {
  const PlannedJob& planned;
  const job::Job& job;
  compile::StepSpec spec;
  std::map<std::string, at::Tensor> values;  // of parameters and buffers
  Batch batch;
  std::map<std::string, double> scalars = {};
  Kind compared = Kind::result;  // or the parameters after the step
};

std::map<std::string, at::Tensor> first_values(const PlannedJob& planned, const job::Job& job) {
  std::map<std::string, at::Tensor> values;
  const auto& init = planned.captured.init;
  for (const auto& output : init.outputs) {
    values[output.name] = initial_value(init, output.name, static_cast<uint64_t>(job.seed));
  }
  // A module that is not deferred has its values, but not those of adapters.
  if (values.contains(planned.captured.graph.inputs.front().name)) return values;
  for (const auto& item : planned.source->module().named_parameters()) {
    values[item.key()] = item.value().detach();
  }
  for (const auto& item : planned.source->module().named_buffers()) {
    values[item.key()] = item.value();
  }
  return values;
}

using Piece = ResultPiece;

// Runs the step on a rank; returns its results.
std::vector<Piece> run(const CheckedStep& step, const compile::Program& program,
                       const mesh::Mesh& mesh, exec::Communicator& communicator) {
  exec::Executor executor(program, communicator, mesh,
                          {.seed = static_cast<uint64_t>(step.job.seed)});
  for (const auto& binding : program.bindings) {
    if (binding.kind != Kind::parameter && binding.kind != Kind::buffer) continue;
    executor.tensor(binding).copy_(part_of(step.values.at(binding.name), binding.ranges));
  }
  executor.run({.step = 1,
                .scalars = step.scalars,
                .data = [&](const std::string& name, int64_t microbatch) {
                  const auto& field = find_field(step.batch, name);
                  if (!step.job.data.is_batched(name)) return field;
                  const auto rows = field.size(0) / program.microbatches;
                  return field.narrow(0, microbatch * rows, rows);
                }});
  // Ranks may hold one copy of the parameters, of which each writes a part.
  everyone(communicator)->run({.kind = exec::Collective::Kind::barrier});
  std::vector<Piece> results;
  for (const auto& binding : program.bindings) {
    if (binding.kind != step.compared) continue;
    const auto value = executor.tensor(binding).to(at::kDouble, /*non_blocking=*/false,
                                                   /*copy=*/true);
    const auto name = step.compared == Kind::parameter ? "parameter:" + binding.name : binding.name;
    results.push_back({name, value, binding.ranges});
  }
  everyone(communicator)->run({.kind = exec::Collective::Kind::barrier});
  return results;
}

double largest_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

const at::Tensor* find(const std::vector<Piece>& results, const std::string& name) {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [&](const Piece& piece) { return piece.name == name; });
  return found == results.end() ? nullptr : &found->value;
}

// Returns the difference between the ranks' tensors PREFIX:PARAMETER and that of one device.
GradientDifference compare(std::string_view prefix, const std::string& parameter,
                           const at::Tensor& whole, const std::vector<std::vector<Piece>>& ranks,
                           double largest_of_all, const std::optional<Closeness>& closeness) {
  const auto missing = std::numeric_limits<double>::infinity();
  GradientDifference difference{parameter};
  const double scale = std::max(
      {largest_of(whole), kSmallest * largest_of_all, std::numeric_limits<double>::min()});
  bool found = false;
  for (const auto& rank : ranks) {
    for (const auto& piece : rank) {
      if (piece.name != fmt::format("{}:{}", prefix, parameter)) continue;
      found = true;
      const auto own = part_of(whole, piece.ranges);
      const auto error = largest_of(piece.value - own);
      if (closeness) {
        difference.excess = std::max(difference.excess, closeness->excess(piece.value, own));
      }
      difference.largest = std::max(difference.largest, std::isfinite(error) ? error : missing);
    }
  }
  if (!found) difference.largest = difference.excess = missing;
  difference.relative = difference.largest / scale;
  return difference;
}

// Runs the step on all ranks of the plan's mesh, as threads of this process.
std::vector<std::vector<Piece>> run_all(const CheckedStep& step, const plan::Plan& plan,
                                        compile::TraceSource& traces) {
  const auto& graph = step.planned.captured.graph;
  std::vector<compile::Program> programs;
  for (int64_t rank = 0; rank < plan.mesh.size(); ++rank) {
    programs.push_back(compile::compile(graph, plan, step.spec, rank, traces));
  }
  std::vector<std::vector<Piece>> ranks(programs.size());
  exec::run_ranks(std::ssize(programs), [&](exec::Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    ranks[rank] = run(step, programs[rank], plan.mesh, communicator);
  });
  return ranks;
}

// Returns the differences between the ranks' parameters after the first optimizer step, without
// guards, and those of one device.
std::vector<GradientDifference> compare_stepped(CheckedStep step, const plan::Plan& one_device,
                                                const plan::Plan& plan,
                                                const std::optional<Closeness>& closeness,
                                                compile::TraceSource& traces) {
  const auto& graph = step.planned.captured.graph;
  step.spec = step_spec(step.job, graph);
  step.spec.guarded = false;
  step.scalars = step_scalars(step.job, 1);
  step.compared = Kind::parameter;
  const auto one = run_all(step, one_device, traces).front();
  const auto ranks = run_all(step, plan, traces);
  std::vector<GradientDifference> differences;
  for (const auto& input : graph.inputs) {
    const auto* whole = find(one, "parameter:" + input.name);
    if (!whole) continue;
    differences.push_back(compare("parameter", input.name, *whole, ranks, 0, closeness));
  }
  return differences;
}

}  // namespace

bool differ(const std::vector<std::vector<ResultPiece>>& a,
            const std::vector<std::vector<ResultPiece>>& b, const std::string& name) {
  const auto bits = [](const ResultPiece& piece) {
    return piece.value.contiguous().view(at::kLong);
  };
  for (size_t rank = 0; rank < a.size(); ++rank) {
    std::vector<const ResultPiece*> of[2];
    for (const auto& piece : a[rank]) {
      if (piece.name == name) of[0].push_back(&piece);
    }
    for (const auto& piece : b[rank]) {
      if (piece.name == name) of[1].push_back(&piece);
    }
    const bool same = std::equal(of[0].begin(), of[0].end(), of[1].begin(), of[1].end(),
                                 [&](const auto* x, const auto* y) {
                                   return x->ranges == y->ranges && at::equal(bits(*x), bits(*y));
                                 });
    if (!same) return true;
  }
  return false;
}

std::string scope_of(const std::string& parameter) {
  const auto dot = parameter.rfind('.');
  return dot == std::string::npos ? "the model" : parameter.substr(0, dot);
}

double Closeness::excess(const at::Tensor& a, const at::Tensor& b) const {
  if (a.numel() == 0) return 0;
  const auto one_device = b.to(at::kDouble);
  const auto difference = (a.to(at::kDouble) - one_device).abs();
  const auto ratio = difference / (absolute + relative * one_device.abs());
  const auto share = at::where(difference == 0, at::zeros_like(ratio), ratio).max().item<double>();
  return std::isfinite(share) ? share : std::numeric_limits<double>::infinity();
}

bool GradientCheck::passed() const {
  if (!unequal.empty()) return false;
  if (closeness) {
    const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
    const auto close = [](const auto& p) { return p.excess <= 1; };
    return closeness->excess(scalar(loss), scalar(expected_loss)) <= 1 &&
           std::ranges::all_of(parameters, close) && std::ranges::all_of(stepped, close);
  }
  const bool near = std::abs(loss - expected_loss) <=
                    tolerance * std::max(1e-300, std::abs(expected_loss));
  return near && std::all_of(parameters.begin(), parameters.end(),
                             [&](const auto& p) { return p.relative <= tolerance; });
}

GradientCheck check_gradients(const PlannedJob& planned, double tolerance) {
  const auto& graph = planned.captured.graph;
  auto plan = planned.plan;
  if (plan::copies_of(plan) > 1) {
    fail("train",
         "gradients are compared with those of one device, but ranks train {} copies of the model "
         "over {}: check without them (local_sgd)",
         plan::copies_of(plan), plan.copy_axes.text());
  }
  plan.communication.sum = false;
  plan::Plan one_device;
  one_device.graph_hash = plan.graph_hash;
  one_device.mesh.axes = {{"data", 1}};
  one_device.microbatches = plan.microbatches;
  one_device.precision = plan.precision;

  CheckedStep step{planned, planned.job, step_spec(planned.job, graph), {}, {}};
  step.spec.optimizer = "none";
  step.spec.clip_norm.reset();
  step.spec.guarded = false;
  step.spec.groups.clear();
  step.values = first_values(planned, step.job);
  step.batch = data::open_data(step.job, data::division_of(plan))
                   .training->at(1, {0, step.job.batch.global});

  exec::install_allocator();
  exec::set_op_threads(1);
  profile::Database database(profile_of(planned.job));
  profile::TraceDatabase traces(database, 1, exec::cpu_device());
  const auto single = exec::single_communicator();
  const auto one = run(step, compile::compile(graph, one_device, step.spec, 0, traces),
                       one_device.mesh, *single);
  if (plan.recompute.budget_bytes > 0) {  // the regions that training recomputes
    check_at_methods(planned, [&](plan::Plan candidate) {
      candidate = compile::fit_recompute(graph, std::move(candidate), step_spec(step.job, graph),
                                         traces);
      plan.recompute = std::move(candidate.recompute);
    });
  }
  const auto ranks = run_all(step, plan, traces);

  GradientCheck check;
  check.tolerance = tolerance > 0 ? tolerance : default_tolerance(plan, graph);
  const auto& asked = step.job.train;
  if (tolerance == 0 && (asked.check_rtol || asked.check_atol)) {
    check.closeness = Closeness();
    if (asked.check_rtol) check.closeness->relative = *asked.check_rtol;
    if (asked.check_atol) check.closeness->absolute = *asked.check_atol;
  }
  check.ranks = plan.mesh.size();
  check.expected_loss = check.loss = find(one, "loss")->item<double>();
  for (const auto& rank : ranks) {
    const auto* loss = find(rank, "loss");
    const auto error = loss ? std::abs(loss->item<double>() - check.expected_loss) : 0;
    if (loss && !(error <= std::abs(check.loss - check.expected_loss))) {
      check.loss = loss->item<double>();
    }
  }
  double largest = 0;
  for (const auto& piece : one) {
    if (piece.name.starts_with("gradient:")) largest = std::max(largest, largest_of(piece.value));
  }
  for (const auto& input : graph.inputs) {
    const auto* whole = find(one, "gradient:" + input.name);
    if (!whole) continue;
    check.parameters.push_back(
        compare("gradient", input.name, *whole, ranks, largest, check.closeness));
  }
  if (check.closeness) {
    check.stepped = compare_stepped(step, one_device, plan, check.closeness, traces);
  }
  check.recomputes = !plan.recompute.regions.empty();
  if (!check.recomputes) return check;
  plan.recompute = {};
  const auto kept = run_all(step, plan, traces);
  for (const auto& parameter : check.parameters) {
    if (differ(ranks, kept, "gradient:" + parameter.parameter)) {
      check.unequal.push_back(parameter.parameter);
    }
  }
  return check;
}

namespace {

// Returns "0.001", or "0.005 + 0.0001 |x|" for elements.
std::string tolerance_text(const GradientCheck& check) {
  if (!check.closeness) return fmt::format("{:.3g}", check.tolerance);
  return fmt::format("{:.3g} + {:.3g} |x|", check.closeness->absolute, check.closeness->relative);
}

// Returns a line for each parameter whose value after the step is not close, and the verdict.
std::string print_stepped(const GradientCheck& check) {
  std::string text;
  int64_t wrong = 0;
  for (const auto& p : check.stepped) {
    if (p.excess <= 1) continue;
    ++wrong;
    text += fmt::format("{} after the first step  {:.3g}  WRONG\n", p.parameter, p.largest);
  }
  if (wrong == 0) {
    return fmt::format("all {} parameters after the first step agree to {}\n", check.stepped.size(),
                       tolerance_text(check));
  }
  return text + fmt::format("{} of {} parameters after the first step differ by more than {}\n",
                            wrong, check.stepped.size(), tolerance_text(check));
}

}  // namespace

std::string print(const GradientCheck& check) {
  auto sorted = check.parameters;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) {
    return check.closeness ? a.excess > b.excess : a.relative > b.relative;
  });
  size_t width = 9;
  for (const auto& p : sorted) width = std::max(width, p.parameter.size());
  auto text = fmt::format("{:{}}  {:>10}  {:>10}\n", "parameter", width, "absolute", "relative");
  int64_t wrong = 0;
  for (const auto& p : sorted) {
    const bool differs = check.closeness ? !(p.excess <= 1) : !(p.relative <= check.tolerance);
    wrong += differs;
    text += fmt::format("{:{}}  {:>10.3g}  {:>10.3g}{}\n", p.parameter, width, p.largest,
                        p.relative, differs ? "  WRONG" : "");
  }
  text += fmt::format("loss {:.10g} on {} rank{}, {:.10g} on one device\n", check.loss, check.ranks,
                      check.ranks == 1 ? "" : "s", check.expected_loss);
  if (!check.unequal.empty()) {
    text += fmt::format(
        "WRONG: {} gradient{} not bit-equal to those without activation checkpointing; the first "
        "is that of {} in {}\n",
        check.unequal.size(), check.unequal.size() == 1 ? " is" : "s are", check.unequal.front(),
        scope_of(check.unequal.front()));
  } else if (check.recomputes) {
    text += fmt::format("without activation checkpointing all {} gradients are bit-equal\n",
                        sorted.size());
  }
  if (!check.stepped.empty()) text += print_stepped(check);
  const bool other = !check.unequal.empty() ||
                     std::ranges::any_of(check.stepped,
                                         [](const auto& p) { return !(p.excess <= 1); });
  if (check.passed()) {
    text += fmt::format("all {} gradients agree to {}\n", sorted.size(), tolerance_text(check));
  } else if (wrong > 0 || !other) {
    text += fmt::format("{} of {} gradients{} differ by more than {}\n", wrong, sorted.size(),
                        wrong == 0 ? ", and the loss," : "", tolerance_text(check));
  }
  return text;
}

void require_passed(const GradientCheck& check) {
  if (check.passed()) {
    log::info(
        "gradients of {} parameters on {} ranks{} agree with one device's to {}{}",
        check.parameters.size(), check.ranks,
        check.stepped.empty() ? "" : ", and the parameters after the first step,",
        tolerance_text(check),
        check.recomputes ? ", and bit for bit with those without activation checkpointing" : "");
    return;
  }
  if (!check.unequal.empty()) {
    fail_run("train",
             "the first step's gradients must be bit-equal to those of the same plan without "
             "activation checkpointing, but that of {} in scope {} is not: leave out of checkpoint "
             "the scopes whose ops return other results when they are recomputed, or set "
             "train.check_gradients = false",
             check.unequal.front(), scope_of(check.unequal.front()));
  }
  if (check.closeness) {
    const auto worst_of = [](const std::vector<GradientDifference>& differences) {
      return *std::ranges::max_element(differences, {}, &GradientDifference::excess);
    };
    auto worst = worst_of(check.parameters);
    const bool gradients = check.stepped.empty() || !(worst.excess <= 1) ||
                           worst_of(check.stepped).excess <= 1;
    if (!gradients) worst = worst_of(check.stepped);
    fail_run("train",
             "the elements of {} must be those of one device to {}, but {} is off by {:g} in one, "
             "and an element by {:.3g} times what it may (perigee train --check-gradients lists "
             "all): take a method out, or raise train.check_rtol or train.check_atol",
             gradients ? "the first step's gradients, and its loss,"
                       : "the parameters after the first step",
             tolerance_text(check), worst.parameter, worst.largest, worst.excess);
  }
  const auto worst = std::max_element(
      check.parameters.begin(), check.parameters.end(),
      [](const auto& a, const auto& b) { return a.relative < b.relative; });
  fail_run("train",
           "the first step's gradients must be those of one device to {:g}, but {} is off by {:g} "
           "(perigee train --check-gradients lists all): take a method out, or set "
           "train.check_gradients = false",
           check.tolerance, worst->parameter, worst->relative);
}

}  // namespace perigee::train
