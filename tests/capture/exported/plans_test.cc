// Every fixture under plans, with microbatches where its loss allows them: losses and gradients are
// those of one device, and PyTorch's. The table of runtime/exported.md states the outcomes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tests/capture/exported/support.h"
#include "tests/capture/support.h"
#include "tests/support/golden.h"
#include "train/trainer.h"

namespace perigee::test {
namespace {

struct PlanCase {
  std::string name;      // column of the table
  std::string strategy;  // "": the search's
  int64_t ranks = 1;
  int64_t microbatches = 1;
};

constexpr const char* kOne = R"([["parallel_mode", [["data", 1]]]])";

// The table's columns.
const std::vector<PlanCase>& columns() {
  static const std::vector<PlanCase> all = {
      {"microbatches", kOne, 1, 2},
      {"data", R"([["parallel_mode", [["data", 2]]]])", 2, 2},
      {"fsdp", R"([["parallel_mode", [["data", 2]]], "fsdp"])", 2, 2},
      {"tensor, planned",
       R"([["parallel_mode", [["tensor", 2]]], ["tensor_parallel", {"planned": true}]])", 2, 2},
      {"pipeline", R"([["parallel_mode", [["pipe", 2]]], "pipeline_parallel"])", 2, 2}};
  return all;
}

using Numbers = std::map<std::string, at::Tensor>;  // "loss" and "gradient:NAME"

// Returns "" where the numbers agree, gradients relative to the largest element of all.
std::string first_difference(const Numbers& got, const Numbers& wanted, double tolerance) {
  double largest = 0;
  for (const auto& [name, tensor] : wanted) {
    if (name != "loss") largest = std::max(largest, tensor.abs().max().item<double>());
  }
  for (const auto& [name, tensor] : wanted) {
    const double scale = name == "loss" ? std::abs(tensor.item<double>()) : largest;
    const double distance = (got.at(name) - tensor).abs().max().item<double>();
    if (!(distance <= tolerance * scale)) {
      return fmt::format("{} differs from one device's by {}", name, distance / scale);
    }
  }
  return "";
}

// A fixture's model, and its trainings of one step on the fixture's batch.
class TrainedModel {
 public:
  explicit TrainedModel(const Fixture& given) : given_(given), batch_(given.batch()) {
    samples_ = batch_.begin()->second.size(0);
    const auto model = load_exported(given.file);
    module_ = model.module;
    source_ = source(module_, batch_, model.forward);
  }

  // Returns the loss and the gradients of a batch, as `compare` reads them.
  Numbers run(const PlanCase& plan, const Batch& batch) const {
    const int64_t data = plan.strategy.find(R"("data", 2)") != std::string::npos ? 2 : 1;
    const auto job = Job::parse(
        fmt::format("name = 'exported'\n[model]\nkind = 'exported'\nfile = '{}'\n[data]\n"
                    "synthetic = true\n[batch]\nglobal = {}\nmicro = {}\n[optimizer]\n"
                    "name = 'sgd'\nlr = 1.0\nmomentum = 0.0\nweight_decay = 0.0\nclip_norm = 0.0\n"
                    "[lr_schedule]\nkind = 'constant'\nwarmup = 0\n[cluster]\ndevice = 'cpu'\n"
                    "[train]\nsteps = 1\nvalidate_every = 0\n",
                    given_.file, samples_, samples_ / plan.microbatches / data),
        "exported.toml");
    Trainer trainer{
        *module_,
        make_plan(source_, plan.strategy.empty() ? Strategy() : Strategy::data(plan.strategy), job,
                  {plan.ranks}),
        job, Ranks::threads(plan.ranks), nullptr};
    Numbers result;
    result["loss"] = at::scalar_tensor(trainer.step(batch).loss, at::kDouble);
    const auto after = load_exported(given_.file).module;
    trainer.copy_to(*after);
    const auto before = module_->named_parameters();
    for (const auto& item : after->named_parameters()) {
      const auto& first = before[item.key()];
      if (!given_.expected.at("gradients").contains(item.key())) continue;
      result["gradient:" + item.key()] = (first - item.value()).detach();
    }
    return result;
  }

  // Returns "" where the plan gives the numbers of one device on microbatches of the same samples,
  // and PyTorch's; else the first difference, or the error. Where batch norm couples samples,
  // PyTorch's are those of the first half, of which both microbatches consist.
  std::string difference(const PlanCase& plan) {
    try {
      const auto got = run(plan, batch_);
      auto [known, added] = one_.try_emplace(plan.microbatches);
      if (added) known->second = run({"one device", kOne, 1, plan.microbatches}, batch_);
      const auto different = first_difference(got, known->second, given_.tolerance());
      if (!different.empty()) return different;
      if (!given_.expected.contains("half") || plan.microbatches == 1) {
        return compare(got, given_.expected, given_.tolerance());
      }
      if (plan.microbatches != 2) return "";
      Batch twice;
      for (const auto& [name, half] : given_.batch(samples_ / 2))
        twice[name] = at::cat({half, half});
      return compare(run(plan, twice), given_.expected.at("half"), given_.tolerance());
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  const Fixture& given_;
  const Batch batch_;
  int64_t samples_ = 0;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<const ModelSource> source_;
  std::map<int64_t, Numbers> one_;  // by microbatches: of one device
};

const std::string kPage = "runtime/exported.md";

// Returns a cell of the table: whether the plan's numbers agree, if not with two microbatches then
// with one.
std::string cell(TrainedModel& trained, PlanCase plan, std::string& error) {
  error = trained.difference(plan);
  if (error.empty()) return "yes";
  if (error.find("cut into microbatches must be") == std::string::npos) return "no";
  error = "";
  if (plan.ranks == 1) return "no";
  plan.microbatches = 1;
  error = trained.difference(plan);
  return error.empty() ? "one microbatch" : "no";
}

// Returns the page's text with the model's row ending in these cells.
std::string with_row(const std::string& page, const std::string& name,
                     const std::vector<std::string>& cells) {
  const std::string start = "| `" + name + "` | ";
  const auto begin = page.find("\n" + start);
  REQUIRE(begin != std::string::npos);
  const auto from = page.find(" |", begin + 1 + start.size());  // after the model's source
  const auto end = page.find('\n', from);
  return page.substr(0, from) + fmt::format(" | {} |", fmt::join(cells, " | ")) + page.substr(end);
}

// Trainings with several forms of parallelism.
const std::vector<PlanCase>& combinations() {
  static const std::vector<PlanCase> all = {
      {"data and tensor",
       R"([["parallel_mode", [["data", 2], ["tensor", 2]]],
           ["tensor_parallel", {"planned": true}]])",
       4, 2},
      {"tensor and pipeline",
       R"([["parallel_mode", [["tensor", 2], ["pipe", 2]]],
           ["tensor_parallel", {"planned": true}], "pipeline_parallel"])",
       4, 2},
      {"data and pipeline, zero1",
       R"([["parallel_mode", [["data", 2], ["pipe", 2]]], "zero1", "pipeline_parallel"])", 4, 2},
      {"data, tensor and pipeline",
       R"([["parallel_mode", [["data", 2], ["tensor", 2], ["pipe", 2]]],
           ["tensor_parallel", {"planned": true}], "pipeline_parallel"])",
       8, 2},
      {"split backward passes",
       R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {"schedule": "zb1p"}]])", 2, 4},
      {"auto_sharding", R"([["parallel_mode", [["tensor", 2]]], "auto_sharding"])", 2, 2},
      {"three tensor ranks",
       R"([["parallel_mode", [["tensor", 3]]], ["tensor_parallel", {"planned": true}]])", 3, 2}};
  return all;
}

}  // namespace

TEST_CASE("exported models under plans have one device's and PyTorch's numbers, as the page says") {
  auto page = read_text(kPage);
  for (const auto& given : fixtures()) {
    TrainedModel trained(given);
    std::vector<std::string> cells{given.computes_in()};
    for (const auto& plan : columns()) {
      std::string error;
      cells.push_back(cell(trained, plan, error));
      INFO(given.name << ", " << plan.name << ": " << error);
      CHECK(error.empty());
    }
    page = with_row(page, given.name, cells);
  }
  CHECK(golden_difference(kPage, page) == "");
}

TEST_CASE("graphs without repeated blocks are planned by auto_sharding and by the search") {
  for (const std::string name : {"lstm", "unet", "dlrm"}) {
    TrainedModel trained(fixture(name));
    CHECK(trained.difference({"auto_sharding",
                              R"([["parallel_mode", [["tensor", 2]]], "auto_sharding"])", 2, 1}) ==
          "");
    CHECK(trained.difference({"auto", "", 2, 1}) == "");
  }
}

TEST_CASE("exported models under combined plans have one device's and PyTorch's numbers",
          "[.long]") {
  for (const auto& given : fixtures()) {
    TrainedModel trained(given);
    for (const auto& plan : combinations()) {
      std::string error;
      const auto outcome = cell(trained, plan, error);
      INFO(given.name << ", " << plan.name << ": " << error);
      CHECK(outcome != "no");
    }
  }
}

}  // namespace perigee::test
