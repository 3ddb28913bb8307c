#include "train/plan/memory_check.h"

#include <map>
#include <string>
#include <vector>

#include "base/fail.h"
#include "base/text/bytes.h"
#include "simulate/report.h"

namespace perigee::train {
namespace {

constexpr const char* kRemedies =
    "use more ranks or a smaller batch.micro, or add zero1, zero2, fsdp, checkpoint or offload";

int64_t rank_at(const plan::Plan& plan, size_t position) {
  return plan.mesh.order.empty() ? static_cast<int64_t>(position) : plan.mesh.order[position];
}

// "rank 3 (stage 1)"
std::string name_of(const plan::Plan& plan, int64_t rank) {
  if (!plan.pipeline.cuts()) return fmt::format("rank {}", rank);
  const auto axis = plan.mesh.find(plan.pipeline.axis);
  return fmt::format("rank {} (stage {})", rank, mesh::coordinates(plan.mesh, rank)[axis]);
}

[[noreturn]] void refuse(const std::string& who, double needed, double available,
                         const std::string& owner, const Remedy& remedy) {
  const auto changes = remedy ? remedy() : std::string();
  fail("plan", "a plan must fit the available memory, but {} {}, {} more than the {} of {}: {}",
       who, bytes_text(needed), bytes_text(needed - available), bytes_text(available), owner,
       changes.empty() ? kRemedies : changes);
}

}  // namespace

void check_memory(const plan::Plan& plan, const cost::Cluster& cluster, const Remedy& remedy) {
  const auto& peaks = plan.prediction.peak_bytes;
  double worst = 0;
  size_t at = 0;
  const auto memory_of = [&](size_t position) {
    const auto rank = rank_at(plan, position);
    return rank < cluster.ranks() ? cluster.device(rank).memory : cluster.least_memory();
  };
  for (size_t i = 0; i < peaks.size(); ++i) {
    const auto missing = static_cast<double>(peaks[i]) - memory_of(i);
    if (missing <= worst) continue;
    worst = missing;
    at = i;
  }
  if (worst == 0) return;
  refuse(name_of(plan, rank_at(plan, at)) + " needs", static_cast<double>(peaks[at]), memory_of(at),
         "its device", remedy);
}

void check_memory(const plan::Plan& plan, const HostMemory& host, const Remedy& remedy) {
  const auto& peaks = plan.prediction.peak_bytes;
  const auto& on_host = plan.prediction.host_bytes;
  std::map<int64_t, std::vector<size_t>> by_host;  // positions in the mesh
  for (size_t i = 0; i < peaks.size(); ++i) by_host[rank_at(plan, i) / host.ranks].push_back(i);
  for (const auto& [number, positions] : by_host) {
    double needed = 0;
    size_t largest = positions.front();
    const auto of = [&](size_t i) {
      const auto rank = static_cast<size_t>(rank_at(plan, i));
      const auto copy = rank < host.checkpoint_bytes.size() ? host.checkpoint_bytes[rank] : 0;
      return peaks[i] + (on_host.empty() ? 0 : on_host[i]) + copy;
    };
    for (const auto i : positions) {
      needed += static_cast<double>(of(i));
      if (of(i) > of(largest)) largest = i;
    }
    if (needed <= host.bytes) continue;
    const auto name = name_of(plan, rank_at(plan, largest));
    refuse(positions.size() == 1
               ? name + " needs"
               : fmt::format("{} ranks, of which {} needs the most ({}), need together",
                             positions.size(), name, bytes_text(static_cast<double>(of(largest)))),
           needed, host.bytes, "their host", remedy);
  }
}

}  // namespace perigee::train
