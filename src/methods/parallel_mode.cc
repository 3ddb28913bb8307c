// parallel_mode: the mesh. Axes with sizes, the first varies fastest; the data axis adjusts to a
// world that was given.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "methods/method.h"
#include "methods/texts.h"

namespace perigee::methods {
namespace {

const std::vector<std::string> kAxes = {"data",    "zero",   "tensor", "sequence",
                                        "context", "expert", "pipe"};

mesh::Axis read_axis(const Json& item) {
  const bool fits =
      item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_number_integer();
  if (!fits) {
    fail("parallel_mode", "an axis is {{name, size}}, but got {}", item.dump());
  }
  mesh::Axis axis{item[0].get<std::string>(), item[1].get<int64_t>()};
  if (axis.name == "pipeline") axis.name = "pipe";
  if (std::find(kAxes.begin(), kAxes.end(), axis.name) == kAxes.end()) {
    fail("parallel_mode",
         "axes are data, zero, tensor, sequence, context, expert and pipe, but got \"{}\"{}",
         axis.name, did_you_mean(axis.name, kAxes));
  }
  return axis;
}

class ParallelMode : public Method {
 public:
  std::string_view name() const override { return "parallel_mode"; }
  std::string_view doc() const override {
    return "The device mesh: a list of {axis, size}, the first varies fastest over ranks. Without "
           "axes all ranks "
           "are on `data`. The data axis adjusts to a world that was given.";
  }
  std::string_view items() const override { return "{axis, size}, ..."; }
  const std::vector<Field>& fields() const override {
    static const std::vector<Field> fields = {
        {"order", "list", "the ranks to use, in mesh order; default 0, 1, 2, ..."},
        {"exact", "boolean",
         "whether another number of ranks than the sizes multiply to is an error, and not made up "
         "for by the data axis"},
        {"forbid", "list",
         "what the plan may not come to: `all_gather`, `all_to_all` (of values that ops read), "
         "`replicated_parameters` (on several ranks), `nd_shardings` (tensors split over several "
         "axes), `replicated_products` (which all ranks compute)"}};
    return fields;
  }

  void apply(plan::Plan& plan, const Config& config, const Request& request) const override {
    mesh::Mesh mesh;
    for (const auto& item : config.items) mesh.axes.push_back(read_axis(item));
    if (mesh.axes.empty()) mesh.axes.push_back({"data", request.world});
    if (config.fields.contains("order")) {
      for (const auto& rank : config.fields["order"]) {
        if (!rank.is_number_integer()) {
          fail("parallel_mode", "order lists ranks, but got {}", rank.dump());
        }
        mesh.order.push_back(rank.get<int64_t>());
      }
    }
    mesh::verify(mesh);
    const bool exact = config.fields.value("exact", false);
    if (request.world_given) adjust(mesh, request.world, exact);
    plan.mesh = std::move(mesh);
    for (const auto& axis : plan.mesh.axes)
      plan.decisions.push_back({"parallel_mode", sentence(axis)});
    if (!config.fields.contains("forbid")) return;
    plan.forbidden = texts(config.fields["forbid"], name(), "forbid");
    const auto known = plan::forbiddable();
    for (const auto& text : plan.forbidden) {
      if (std::find(known.begin(), known.end(), text) != known.end()) continue;
      fail("parallel_mode", "forbid lists {}, but got \"{}\"{}", fmt::join(known, ", "), text,
           did_you_mean(text, known));
    }
    plan.decisions.push_back(
        {"parallel_mode", fmt::format("{} is forbidden", fmt::join(plan.forbidden, ", "))});
  }

 private:
  static void adjust(mesh::Mesh& mesh, int64_t world, bool exact) {
    const auto product = mesh.size();
    if (product == world) return;
    const int data = mesh.find("data");
    const auto why = [&]() -> std::string {
      if (!mesh.order.empty()) return "order fixes the ranks";
      if (exact) return "the sizes are given";
      if (data < 0) return "there is no data axis to adjust";
      return fmt::format("the other axes multiply to {}", product / mesh.axes[data].size);
    };
    if (!mesh.order.empty() || exact || data < 0 || (world * mesh.axes[data].size) % product != 0) {
      fail("parallel_mode",
           "axes must multiply to the {} ranks of this run, but they multiply to {} and {}: change "
           "a size, or run {} ranks (--nproc, cluster.ranks)",
           world, product, why(), product);
    }
    mesh.axes[data].size = world * mesh.axes[data].size / product;
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
