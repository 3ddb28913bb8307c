#include "train/memory_check.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "search/report.h"

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

[[noreturn]] void refuse(const std::string& who, double needed, double there,
                         const std::string& more, const Remedy& remedy) {
  const auto known = remedy ? remedy() : std::string();
  fail("plan", "a plan fits the memory that there is, but {} {}, {} more than the {} of {}: {}",
       who, search::bytes_text(needed), search::bytes_text(needed - there),
       search::bytes_text(there), more, known.empty() ? kRemedies : known);
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
  const auto& beside = plan.prediction.host_bytes;
  for (size_t first = 0; first < peaks.size(); first += static_cast<size_t>(host.ranks)) {
    const auto behind = std::min(first + static_cast<size_t>(host.ranks), peaks.size());
    double needed = 0;
    size_t most = first;
    const auto of = [&](size_t i) { return peaks[i] + (beside.empty() ? 0 : beside[i]); };
    for (size_t i = first; i < behind; ++i) {
      needed += static_cast<double>(of(i));
      if (of(i) > of(most)) most = i;
    }
    if (needed <= host.bytes) continue;
    const auto name = name_of(plan, rank_at(plan, most));
    refuse(
        behind - first == 1
            ? name + " needs"
            : fmt::format("{} ranks, of which {} needs the most ({}), need together",
                          behind - first, name, search::bytes_text(static_cast<double>(of(most)))),
        needed, host.bytes, "their host", remedy);
  }
}

}  // namespace perigee::train
