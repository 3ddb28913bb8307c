// The keys of [cluster] and [profile].
#include "base/rank_limit.h"
#include "job/table.h"

namespace perigee::job {

std::vector<JobKey> cluster_keys() {
  return {
      {.table = "cluster",
       .name = "device",
       .field = FIELD(j.cluster.device),
       .allowed = {"cpu", "cuda"},
       .otherwise = "cuda when present",
       .about = "Device that the ranks compute on."},
      {.table = "cluster",
       .name = "ranks",
       .field = FIELD(j.cluster.ranks),
       .least = 1,
       .most = kMostRanks,
       .per_host = true,
       .otherwise = "all local devices, 1 for cpu",
       .about = "Number of ranks, where neither a launcher nor `--nproc` sets it."},
      {.table = "cluster",
       .name = "threads",
       .field = FIELD(j.cluster.threads),
       .least = 1,
       .most = 1024,
       .per_host = true,
       .otherwise = "on a CPU `OMP_NUM_THREADS`, or the host's cores divided by its ranks; else 1",
       .about = "Threads of one rank's CPU work."},
      {.table = "cluster",
       .name = "deterministic",
       .field = FIELD(j.cluster.deterministic),
       .about = "On a GPU: only kernels whose results are bit-equal from run to run, slower ones "
                "where needed; an op without one is an error. On the CPU results always are."},
      {.table = "cluster",
       .name = "tf32",
       .field = FIELD(j.cluster.tf32),
       .about = "On a GPU: whether float32 products and convolutions may round their factors to "
                "TF32 (10 bits of mantissa), which takes a fraction of the time."},
      {.table = "cluster",
       .name = "graphs",
       .field = FIELD(j.cluster.graphs),
       .allowed = {"auto", "true", "false"},
       .about =
           "On a GPU: whether a step is recorded as a CUDA graph, which later steps launch as "
           "one piece of work: wherever the program and the GPU allow it (`\"auto\"`; the log "
           "says what prevents it), always (`true`: otherwise an error), or never (`false`). It "
           "has been tested on simulated GPUs only."},
      {.table = "cluster",
       .name = "timeout",
       .field = FIELD(j.cluster.timeout),
       .more_than = 0,
       .most = 1e9,
       .per_host = true,
       .about = "Seconds after which a rank that does not answer ends the job."},
      {.table = "cluster",
       .name = "devices",
       .field = FIELD(j.cluster.devices),
       .per_host = true,
       .otherwise = "all that the process may see",
       .about = "GPUs of a host that its ranks use, in this order (\"0,2\"). Where no launcher, "
                "option or key sets the number of ranks, a host has one rank for each GPU listed, "
                "also on the CPU."},
      {.table = "cluster",
       .name = "in_process",
       .field = FIELD(j.cluster.in_process),
       .per_host = true,
       .about = "Whether the ranks are threads of one process, which exchange tensors through its "
                "memory: for trying a strategy on one device."},
      {.table = "cluster",
       .name = "messages",
       .field = FIELD(j.cluster.messages),
       .allowed = {"device", "gloo"},
       .about = "What carries the messages between pipeline stages: what carries the device's "
                "collectives (NCCL on GPUs), or Gloo, through the host's memory, while collectives "
                "stay with NCCL."},
      {.table = "cluster",
       .name = "communicator",
       .field = FIELD(j.cluster.communicator),
       .allowed = {"auto", "shared", "gloo"},
       .about =
           "What carries tensors in the hosts' memory between ranks that are processes: shared "
           "memory between the ranks of one host and Gloo between hosts (`auto`), shared "
           "memory only (`shared`: an error where a group of ranks has none), or Gloo only."},
      {.table = "cluster",
       .name = "file",
       .field = FIELD(j.cluster.file),
       .is_path = true,
       .per_host = true,
       .otherwise = "this machine",
       .about = "Cluster description, for planning only."},
      {.table = "cluster",
       .name = "profile",
       .field = FIELD(j.cluster.profile),
       .is_path = true,
       .per_host = true,
       .otherwise = "the one in the user's cache folder",
       .about = "Profile database: times of ops, measured by `perigee profile`."},

      {.table = "profile",
       .name = "parallel",
       .field = FIELD(j.profile.parallel),
       .per_host = true,
       .about = "Whether `perigee profile` measures ops on all ranks at once, as they run in "
                "training; otherwise on rank 0 while the others wait."},
      {.table = "profile",
       .name = "again",
       .field = FIELD(j.profile.remeasure),
       .per_host = true,
       .about = "Whether `perigee profile` also measures ops whose times are known."}};
}

}  // namespace perigee::job
