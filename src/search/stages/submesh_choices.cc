#include "search/stages/submesh_choices.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::search {
namespace {

using Shape = std::pair<int64_t, int64_t>;  // hosts, devices of each

const std::vector<std::string> kPhysical = {"all", "power_of_two", "small_power_of_two", "manual"};
const std::vector<std::string> kLogical = {"same_as_physical", "data_parallel_only",
                                           "model_parallel_only", "single_node_model_parallel",
                                           "all"};
constexpr int64_t kSmall = 4;  // most hosts of small_power_of_two

void check_name(const std::string& what, const std::string& name,
                const std::vector<std::string>& known) {
  if (std::ranges::count(known, name) > 0) return;
  fail("stages", "{} must be one of {}, but got \"{}\"{}", what, fmt::join(known, ", "), name,
       did_you_mean(name, known));
}

std::vector<Shape> shapes_of(const SubmeshSpace& space) {
  std::vector<Shape> shapes;
  if (space.physical == "manual") {
    for (const auto& shape : space.manual) {
      const auto& [hosts, devices] = shape;
      const bool whole = hosts == 1 || devices == space.devices;
      if (hosts < 1 || devices < 1 || hosts > space.hosts || devices > space.devices || !whole) {
        fail("stages",
             "a submesh is a part of a host or several whole hosts of {} x {}, but got {} x {}",
             space.hosts, space.devices, hosts, devices);
      }
      if (std::ranges::count(shapes, shape) == 0) shapes.push_back(shape);
    }
    return shapes;
  }
  for (int64_t devices = 1; devices < space.devices; devices *= 2) shapes.push_back({1, devices});
  shapes.push_back({1, space.devices});
  const bool all = space.physical == "all", small = space.physical == "small_power_of_two";
  for (int64_t hosts = 2; hosts <= space.hosts; hosts = all ? hosts + 1 : hosts * 2) {
    if (small && hosts > kSmall) break;
    shapes.push_back({hosts, space.devices});
  }
  return shapes;
}

std::vector<int64_t> tensor_sizes(const SubmeshSpace& space, const Shape& shape) {
  const auto [hosts, devices] = shape;
  const auto ranks = hosts * devices;
  if (space.logical == "same_as_physical") return {devices};
  if (space.logical == "data_parallel_only") return {1};
  if (space.logical == "model_parallel_only") return {ranks};
  std::vector<int64_t> sizes;
  const auto most = space.logical == "all" ? ranks : devices;
  for (int64_t size = 1; size <= most; size *= 2) {
    if (ranks % size == 0) sizes.push_back(size);
  }
  if (std::ranges::count(sizes, most) == 0) sizes.push_back(most);
  return sizes;
}

}  // namespace

std::vector<SubmeshView> submesh_choices(const SubmeshSpace& space) {
  check_name("submeshes", space.physical, kPhysical);
  check_name("views", space.logical, kLogical);
  std::vector<SubmeshView> views;
  for (const auto& shape : shapes_of(space)) {
    const auto [hosts, devices] = shape;
    for (const auto tensor : tensor_sizes(space, shape)) {
      const SubmeshView view{hosts, devices, hosts * devices / tensor, tensor};
      if (space.samples % view.data == 0) views.push_back(view);
    }
  }
  if (views.empty()) {
    fail("stages", "no submesh's data axis divides the {} samples of a microbatch", space.samples);
  }
  return views;
}

}  // namespace perigee::search
