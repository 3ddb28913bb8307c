#include "job/rank_process.h"

#include <stdlib.h>

#include <charconv>
#include <cstring>
#include <utility>

namespace perigee::job {
namespace {

// Returns the number that the variable begins with, or 0.
int64_t leading_number(const char* variable) {
  int64_t value = 0;
  if (const char* text = ::getenv(variable)) {
    std::from_chars(text, text + std::strlen(text), value);
  }
  return value;
}

}  // namespace

void load_kernels_at_start(const RankPlace& place) {
  if (place.world > 1) ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

std::optional<int64_t> ranks_of_host() {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"WORLD_SIZE", "LOCAL_WORLD_SIZE"},
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      {"PMI_SIZE", "MPI_LOCALNRANKS"}};
  for (const auto& [world, of_host] : kNames) {
    const auto ranks = leading_number(of_host);
    if (leading_number(world) > 1 && ranks > 0) return ranks;
  }
  if (leading_number("SLURM_STEP_NUM_TASKS") > 1) return tasks_of_slurm_node();
  return std::nullopt;
}

}  // namespace perigee::job
