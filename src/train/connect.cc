#include "train/connect.h"

#include "exec/gloo.h"

namespace perigee::train {

std::unique_ptr<exec::Communicator> connect(const job::Job& job, const job::RankPlace& place) {
  if (place.world == 1) return exec::single_communicator();
  exec::GlooOptions options;
  options.host = place.host;
  options.port = static_cast<uint16_t>(place.port);
  options.rank = place.rank;
  options.world = place.world;
  options.serve = place.rank == 0;
  options.listen_socket = place.listen_fd;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(job.cluster.timeout * 1000));
  return exec::gloo_communicator(options);
}

}  // namespace perigee::train
