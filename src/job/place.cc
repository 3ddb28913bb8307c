#include "job/place.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/fail.h"

namespace perigee::job {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || !*value) return std::nullopt;
  return value;
}

int64_t number(const char* name, std::optional<int64_t> otherwise = {}) {
  const auto text = variable(name);
  if (!text) {
    if (otherwise) return *otherwise;
    fail("launch", "the launcher's environment must have {}, but it is not set", name);
  }
  char* end = nullptr;
  const auto value = std::strtoll(text->c_str(), &end, 10);
  if (*end != '\0' || value < 0)
    fail("launch", "{} must be a number >= 0, but it is \"{}\"", name, *text);
  return value;
}

// Returns the first host of a Slurm node list: "a[03-05,7],b" is a03.
std::string first_host(const std::string& list) {
  const auto bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const auto end = list.find_first_of("-,]", bracket + 1);
  if (end == std::string::npos)
    fail("launch", "SLURM_STEP_NODELIST must be a node list, but it is \"{}\"", list);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

void set_rendezvous(RankPlace& place, std::optional<std::string> host,
                    std::optional<int64_t> port) {
  if (const auto given = variable("MASTER_ADDR")) host = given;
  if (variable("MASTER_PORT")) port = number("MASTER_PORT");
  if (!host && place.local_world == place.world) host = "127.0.0.1";
  if (!host)
    fail("launch", "several hosts need MASTER_ADDR and MASTER_PORT, but MASTER_ADDR is not set");
  if (!port || *port < 1 || *port > 65535) {
    fail("launch", "MASTER_PORT must be a port that is free on rank 0's host, but it is {}",
         port ? std::to_string(*port) : "not set");
  }
  place.interface = variable("GLOO_SOCKET_IFNAME").value_or("");
  place.host = *host;
  place.port = static_cast<int>(*port);
}

// Returns a port for the job, above the well-known and below the ephemeral ports.
int64_t port_of_job(int64_t job) { return 20'000 + job % 12'000; }

}  // namespace

std::optional<int64_t> tasks_of_slurm_node() {
  auto node = std::atoll(variable("SLURM_NODEID").value_or("0").c_str());
  std::istringstream entries(variable("SLURM_STEP_TASKS_PER_NODE").value_or(""));
  for (std::string entry; std::getline(entries, entry, ',');) {
    long long tasks = 0, nodes = 1;
    std::sscanf(entry.c_str(), "%lld(x%lld)", &tasks, &nodes);
    if (tasks < 1) break;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return std::nullopt;
}

std::optional<RankPlace> place_from_environment() {
  RankPlace place;
  if (variable("RANK") && variable("WORLD_SIZE")) {  // torchrun
    place.rank = number("RANK");
    place.world = number("WORLD_SIZE");
    place.local_rank = number("LOCAL_RANK", place.rank);
    place.local_world = number("LOCAL_WORLD_SIZE", place.world);
    set_rendezvous(place, std::nullopt, std::nullopt);
  } else if (variable("OMPI_COMM_WORLD_RANK")) {  // Open MPI
    place.rank = number("OMPI_COMM_WORLD_RANK");
    place.world = number("OMPI_COMM_WORLD_SIZE");
    place.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
    place.local_world = number("OMPI_COMM_WORLD_LOCAL_SIZE");
    set_rendezvous(place, std::nullopt, std::nullopt);
  } else if (variable("PMI_RANK") && (variable("MPI_LOCALRANKID") || !variable("SLURM_PROCID"))) {
    // MPICH, Intel MPI. A task of `srun --mpi=pmi2` has PMI_RANK, too.
    place.rank = number("PMI_RANK");
    place.world = number("PMI_SIZE");
    place.local_rank = number("MPI_LOCALRANKID", place.rank);
    place.local_world = number("MPI_LOCALNRANKS", place.world);
    set_rendezvous(place, std::nullopt, std::nullopt);
  } else if (variable("SLURM_PROCID") && number("SLURM_STEP_NUM_TASKS", 1) > 1) {  // srun
    place.rank = number("SLURM_PROCID");
    place.world = number("SLURM_STEP_NUM_TASKS");
    place.local_rank = number("SLURM_LOCALID");
    place.local_world = tasks_of_slurm_node().value_or(1);
    const auto hosts = variable("SLURM_STEP_NODELIST");
    set_rendezvous(place, hosts ? std::optional(first_host(*hosts)) : std::nullopt,
                   port_of_job(number("SLURM_JOB_ID", 0)));
  } else {
    return std::nullopt;
  }
  if (place.rank >= place.world) {
    fail("launch", "a rank must be below the world's size, but got rank {} of {}", place.rank,
         place.world);
  }
  return place;
}

}  // namespace perigee::job
