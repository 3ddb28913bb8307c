// parallel_mode: the mesh. Axes with sizes, the first varies fastest; the data axis adjusts to a
// world that was given.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "mesh/report.h"
#include "methods/field_table.h"

namespace perigee::methods {
namespace {

// Kinds of which a mesh may have several axes: tensor, tensor2, ...
const std::vector<std::string> kNumbered = {"tensor", "sequence", "expert"};

const std::vector<std::string> kAxes = {"data",    "zero",   "tensor", "sequence",
                                        "context", "expert", "pipe"};

mesh::Axis read_axis(const Json& item) {
  const bool fits = item.is_array() && item.size() == 2 && item[0].is_string() &&
                    item[1].is_number_integer();
  if (!fits) {
    fail("parallel_mode", "an axis is {{name, size}}, but got {}", item.dump());
  }
  mesh::Axis axis{item[0].get<std::string>(), item[1].get<int64_t>()};
  if (axis.name == "pipeline") axis.name = "pipe";
  const auto kind = mesh::kind_of(axis.name);
  const bool numbered = kind.size() < axis.name.size() &&
                        std::find(kNumbered.begin(), kNumbered.end(), kind) != kNumbered.end();
  if (!numbered && std::find(kAxes.begin(), kAxes.end(), axis.name) == kAxes.end()) {
    fail("parallel_mode",
         "axes are data, zero, tensor, sequence, context, expert and pipe, but got \"{}\"{}",
         axis.name, did_you_mean(axis.name, kAxes));
  }
  return axis;
}

struct MeshConfig {
  Json submeshes;
  std::vector<int64_t> order;
  bool exact = false;
  std::string rest = "data";
  bool instances = false, device_mesh = false;
  std::vector<std::string> forbid;
};

class ParallelMode : public MethodWith<MeshConfig> {
 public:
  std::string_view name() const override { return "parallel_mode"; }
  std::string_view doc() const override {
    return "The device mesh: a list of {axis, size}, the first varies fastest over ranks. Without "
           "axes all ranks are on `data`. The data axis adjusts to a world that was given. "
           "Submeshes, one for each stage of a pipeline, give stages different numbers or axes of "
           "ranks. A method may use several axes of a kind, distinguished by a number: `tensor` "
           "and `tensor2`.";
  }
  std::string_view items() const override { return "{axis, size}, ..."; }
  void check_items(const std::vector<Json>& items) const override {
    for (const auto& item : items) read_axis(item);
  }

 protected:
  const FieldTable<MeshConfig>& table() const override {
    using C = MeshConfig;
    static const FieldTable<C> table(
        {{.name = "submeshes",
          .member = &C::submeshes,
          .type = FieldType::list,
          .doc = "instead of axes: the axes of each stage of the pipeline (axis `pipe`), as in "
                 "`{{{\"data\", 2}}, {{\"tensor\", 1}}}`; an axis that a stage omits has one "
                 "rank there"},
         {.name = "order",
          .member = &C::order,
          .otherwise = "0, 1, 2, ...",
          .doc = "the ranks to use, in mesh order"},
         {.name = "exact",
          .member = &C::exact,
          .doc =
              "a number of ranks other than the product of the sizes is an error; no axis adjusts"},
         {.name = "rest",
          .member = &C::rest,
          .doc = "the axis that adjusts to a world that was given"},
         {.name = "instances",
          .member = &C::instances,
          .doc = "a larger world holds several instances of the mesh, on consecutive ranks (axis "
                 "`instance`), which train the same; no axis adjusts"},
         {.name = "device_mesh",
          .member = &C::device_mesh,
          .doc = "a mesh as PyTorch's DeviceMesh: axes of one rank are dropped, and order is not "
                 "allowed"},
         {.name = "forbid",
          .member = &C::forbid,
          .allowed = plan::forbiddable(),
          .doc = "properties that the plan must not have: all_gather or all_to_all of values that "
                 "ops read; parameters replicated on several ranks; tensors split over several "
                 "axes; products that all ranks compute"}});
    return table;
  }

  void edit(plan::Plan& plan, const MeshConfig& given, const Config& config,
            const PlanRequest& request) const override {
    mesh::Mesh mesh;
    for (const auto& item : config.items) mesh.axes.push_back(read_axis(item));
    if (config.has("submeshes")) {
      mesh = read_submeshes(given, config);
    } else if (mesh.axes.empty()) {
      mesh.axes.push_back({"data", request.world});
    }
    mesh.order = given.order;
    if (given.device_mesh && !mesh.order.empty()) {
      fail("parallel_mode", "a device mesh has its ranks in their own order: leave order out");
    }
    mesh::verify(mesh);
    if (request.world_given && given.instances) {
      if (given.exact) {
        fail("parallel_mode",
             "instances allows a larger number of ranks, which exact forbids: leave one of them "
             "out");
      }
      repeat(mesh, request.world);
    } else if (request.world_given) {
      adjust(mesh, request.world, given.rest, given.exact);
    }
    if (given.device_mesh) drop_single(mesh);
    plan.mesh = std::move(mesh);
    for (int64_t stage = 0; stage < std::ssize(plan.mesh.stages); ++stage) {
      plan.decisions.push_back({"parallel_mode", sentence(plan.mesh, stage)});
    }
    for (const auto& axis : plan.mesh.axes) {
      if (!plan.mesh.is_ragged()) plan.decisions.push_back({"parallel_mode", sentence(axis)});
    }
    if (given.device_mesh) plan.decisions.push_back({"parallel_mode", dims(plan.mesh)});
    if (!config.has("forbid")) return;
    plan.forbidden = given.forbid;
    plan.decisions.push_back(
        {"parallel_mode", fmt::format("{} is forbidden", fmt::join(plan.forbidden, ", "))});
  }

 private:
  static mesh::Mesh read_submeshes(const MeshConfig& given, const Config& config) {
    if (given.instances || given.device_mesh) {
      fail("parallel_mode", "submeshes exclude other meshes: leave {} out",
           given.instances ? "instances" : "device_mesh");
    }
    if (!config.items.empty()) {
      fail("parallel_mode", "the mesh has axes, or submeshes with axes of their own, but got both");
    }
    std::vector<std::vector<mesh::Axis>> submeshes;
    for (const auto& item : given.submeshes) {
      if (!item.is_array() && !item.empty()) {
        fail("parallel_mode", "a submesh is a list of {{name, size}}, but got {}", item.dump());
      }
      auto& axes = submeshes.emplace_back();
      for (const auto& axis : item) axes.push_back(read_axis(axis));
    }
    if (submeshes.empty())
      fail("parallel_mode", "submeshes must have one for each stage, but is empty");
    return mesh::join(submeshes, "pipe");
  }

  static std::string sentence(const mesh::Mesh& mesh, int64_t stage) {
    const auto ranks = mesh::ranks_of_stage(mesh, stage);
    return fmt::format("stage {} has {} rank{} ({}){}", stage, ranks.size(),
                       ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                       ranks.size() == 1 ? "" : " as " + mesh::sizes_of_stage(mesh, stage));
  }

  static void adjust(mesh::Mesh& mesh, int64_t world, const std::string& axis, bool exact) {
    const auto product = mesh.size();
    if (product == world) return;
    const int rest = mesh.find(axis);
    const auto why = [&]() -> std::string {
      if (mesh.is_ragged()) return "submeshes have fixed sizes";
      if (!mesh.order.empty()) return "order fixes the ranks";
      if (exact) return "the sizes are given";
      if (rest < 0) return fmt::format("there is no {} axis to adjust", axis);
      return fmt::format("the other axes multiply to {}", product / mesh.axes[rest].size);
    };
    if (mesh.is_ragged() || !mesh.order.empty() || exact || rest < 0 ||
        (world * mesh.axes[rest].size) % product != 0) {
      fail("parallel_mode",
           "axes must multiply to the {} ranks of this run, but they multiply to {} and {}: change "
           "a size, or run {} rank{} (--nproc, cluster.ranks)",
           world, product, why(), product, product == 1 ? "" : "s");
    }
    mesh.axes[rest].size = world * mesh.axes[rest].size / product;
  }

  // Appends further instances of the mesh, each on the ranks after the one before it.
  static void repeat(mesh::Mesh& mesh, int64_t world) {
    const auto product = mesh.size();
    if (world % product != 0) {
      fail("parallel_mode",
           "the {} ranks of this run must hold whole instances of {} ranks: change a size, or run "
           "a multiple of {} ranks (--nproc, cluster.ranks)",
           world, product, product);
    }
    if (world == product) return;
    const auto order = mesh.order;
    for (int64_t i = 1; i < world / product; ++i) {
      for (const auto rank : order) mesh.order.push_back(rank + i * product);
    }
    mesh.axes.push_back({"instance", world / product});
    mesh::verify(mesh);
  }

  static void drop_single(mesh::Mesh& mesh) {
    auto& axes = mesh.axes;
    std::erase_if(axes, [](const auto& axis) { return axis.size == 1; });
    if (axes.empty()) axes.push_back({"data", 1});
  }

  // The dims of a DeviceMesh, of which the last varies fastest.
  static std::string dims(const mesh::Mesh& mesh) {
    std::vector<std::string> dims;
    for (auto axis = mesh.axes.rbegin(); axis != mesh.axes.rend(); ++axis) {
      dims.push_back(fmt::format("{} = {}", axis->name, axis->size));
    }
    return fmt::format("as a device mesh its dims are {}", fmt::join(dims, ", "));
  }

  static std::string sentence(const mesh::Axis& axis) {
    if (axis.name == "data") {
      return fmt::format("the batch is split over {} rank{} on axis data", axis.size,
                         axis.size == 1 ? "" : "s");
    }
    return fmt::format("axis {} has {} rank{}", axis.name, axis.size, axis.size == 1 ? "" : "s");
  }
};

}  // namespace

std::shared_ptr<const Method> parallel_mode() { return std::make_shared<ParallelMode>(); }

}  // namespace perigee::methods
