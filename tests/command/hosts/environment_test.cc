// The environments of torchrun, Open MPI, MPICH and Slurm.
#include <stdlib.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <tuple>

#include "base/error.h"
#include "job/rank_process.h"

using namespace perigee;
using Catch::Matchers::Contains;

namespace {

using Environment = std::map<std::string, std::string>;

// Sets variables and restores them.
class Set {
 public:
  explicit Set(const Environment& variables) : variables_(variables) {
    for (const auto& [name, value] : variables_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Set() {
    for (const auto& [name, value] : variables_) ::unsetenv(name.c_str());
  }

 private:
  Environment variables_;
};

std::optional<job::RankPlace> place(const Environment& variables) {
  const Set set(variables);
  return job::place_from_environment();
}

std::string error(Environment variables, const std::string& without, const std::string& with = "") {
  variables.erase(without);
  if (!with.empty()) variables[without] = with;
  try {
    place(variables);
  } catch (const Error& error) {
    CHECK(error.status() == Status::invalid);
    return error.what();
  }
  return "no error";
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"MASTER_PORT", "1234"}};
const Environment kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_PORT", "1234"}};
const Environment kSlurm = {{"SLURM_PROCID", "6"},
                            {"SLURM_STEP_NUM_TASKS", "8"},
                            {"SLURM_LOCALID", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                            {"SLURM_STEP_NODELIST", "gpu[03-05,7],login"},
                            {"SLURM_JOB_ID", "4711"}};

}  // namespace

TEST_CASE("without a launcher's environment a process has no place") {
  CHECK(!place({}));
  CHECK(!place({{"RANK", "0"}}));
  CHECK(!place({{"RANK", ""}, {"WORLD_SIZE", ""}}));
  CHECK(!place({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}}));  // a batch script, not srun
  CHECK(!place({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}));
}

TEST_CASE("torchrun's environment gives a process its place") {
  const auto found = place(kTorchrun);
  REQUIRE(found);
  CHECK(found->rank == 5);
  CHECK(found->world == 8);
  CHECK(found->local_rank == 1);
  CHECK(found->local_world == 4);
  CHECK(found->host == "node0");
  CHECK(found->port == 29500);
  CHECK(found->listen_fd == -1);
}

TEST_CASE("Open MPI's and MPICH's environments give places on one host") {
  const auto open = place(kOpenMpi);
  REQUIRE(open);
  CHECK((open->rank == 3 && open->world == 4 && open->local_rank == 3 && open->local_world == 4));
  CHECK((open->host == "127.0.0.1" && open->port == 1234));
  const auto mpich = place(kMpich);
  REQUIRE(mpich);
  CHECK((mpich->rank == 1 && mpich->world == 2 && mpich->local_rank == 1));
}

TEST_CASE("Slurm's environment gives a place, the step's first host and the job's port") {
  const auto found = place(kSlurm);
  REQUIRE(found);
  CHECK((found->rank == 6 && found->world == 8 && found->local_rank == 2));
  CHECK(found->local_world == 4);
  CHECK(found->host == "gpu03");
  CHECK(found->port > 1024);
  auto other = kSlurm;
  other["SLURM_PROCID"] = "0";
  CHECK(place(other)->port == found->port);
  other["SLURM_JOB_ID"] = "4712";
  CHECK(place(other)->port != found->port);
  other["MASTER_ADDR"] = "head";
  other["MASTER_PORT"] = "77";
  CHECK((place(other)->host == "head" && place(other)->port == 77));
  for (const auto& [list, first] : Environment{
           {"a", "a"}, {"a,b", "a"}, {"a[1-2]", "a1"}, {"n[7]", "n7"}, {"x[010,2]", "x010"}}) {
    other = kSlurm;
    other["SLURM_STEP_NODELIST"] = list;
    CHECK(place(other)->host == first);
  }
}

TEST_CASE("a task of srun with PMI-2 has its place by Slurm's variables") {
  auto task = kSlurm;
  task["PMI_RANK"] = "6";
  task["PMI_SIZE"] = "8";
  const auto found = place(task);
  REQUIRE(found);
  CHECK((found->rank == 6 && found->world == 8 && found->local_rank == 2));
  CHECK((found->local_world == 4 && found->host == "gpu03"));
  CHECK(!place({{"SLURM_PROCID", "0"},
                {"SLURM_STEP_NUM_TASKS", "1"},
                {"PMI_RANK", "0"},
                {"PMI_SIZE", "1"}}));
  // mpirun within a Slurm allocation.
  auto mpich = kMpich;
  mpich.insert({{"SLURM_PROCID", "0"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  REQUIRE(place(mpich));
  CHECK((place(mpich)->rank == 1 && place(mpich)->world == 2));
}

TEST_CASE("nodes of a Slurm step may run different numbers of tasks") {
  for (const auto& [tasks, node, of_node] :
       {std::tuple{"4,2", "1", 2}, {"4,2", "0", 4}, {"4(x2),3", "1", 4}, {"4(x2),3", "2", 3}}) {
    INFO(tasks << " on node " << node);
    auto step = kSlurm;
    step["SLURM_STEP_TASKS_PER_NODE"] = tasks;
    step["SLURM_NODEID"] = node;
    CHECK(place(step)->local_world == of_node);
    const Set set(step);
    CHECK(job::ranks_of_host() == of_node);
  }
}

TEST_CASE("an incomplete environment is an error that names the variable") {
  CHECK_THAT(error(kTorchrun, "MASTER_ADDR"), Contains("MASTER_ADDR"));
  CHECK_THAT(error(kTorchrun, "MASTER_PORT"), Contains("MASTER_PORT"));
  CHECK_THAT(error(kTorchrun, "MASTER_PORT", "0"), Contains("MASTER_PORT"));
  CHECK_THAT(error(kTorchrun, "MASTER_PORT", "70000"), Contains("70000"));
  CHECK_THAT(error(kTorchrun, "RANK", "8"), Contains("rank 8 of 8"));
  CHECK_THAT(error(kTorchrun, "RANK", "five"), Contains("RANK") && Contains("\"five\""));
  CHECK_THAT(error(kTorchrun, "RANK", "-1"), Contains("RANK") && Contains("-1"));
  for (const auto* name :
       {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    CHECK_THAT(error(kOpenMpi, name), Contains(name));
  }
  CHECK_THAT(error(kMpich, "PMI_SIZE"), Contains("PMI_SIZE"));
  CHECK_THAT(error(kMpich, "MASTER_PORT"), Contains("MASTER_PORT"));
  CHECK_THAT(error(kSlurm, "SLURM_LOCALID"), Contains("SLURM_LOCALID"));
  CHECK_THAT(error(kSlurm, "SLURM_STEP_NODELIST", "a["), Contains("SLURM_STEP_NODELIST"));
}

TEST_CASE("the environment of a launcher tells the ranks of a host") {
  const auto ranks = [](const Environment& variables) {
    const Set set(variables);
    return job::ranks_of_host();
  };
  CHECK(ranks(kTorchrun) == 4);
  CHECK(ranks(kOpenMpi) == 4);
  CHECK(ranks(kSlurm) == 4);
  auto mpich = kMpich;
  CHECK_FALSE(ranks(mpich));
  mpich["MPI_LOCALNRANKS"] = "1";
  CHECK(ranks(mpich) == 1);
  CHECK_FALSE(ranks({}));
  // A step of one task may start several ranks itself.
  CHECK_FALSE(ranks({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
  CHECK_FALSE(ranks({{"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "no"}}));
}

TEST_CASE("CUDA loads all kernels at its start where there are several ranks") {
  const auto loading = [](int64_t world) -> std::string {
    job::load_kernels_at_start({.world = world});
    const char* value = ::getenv("CUDA_MODULE_LOADING");
    return value ? value : "not set";
  };
  ::unsetenv("CUDA_MODULE_LOADING");
  CHECK(loading(1) == "not set");
  CHECK(loading(2) == "EAGER");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  CHECK(loading(2) == "LAZY");
  ::unsetenv("CUDA_MODULE_LOADING");
}
