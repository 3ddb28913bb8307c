// Long work on some ranks while the others wait.
#pragma once

#include <functional>

#include "exec/comm/communicator.h"
#include "job/job.h"

namespace perigee::train {

// Runs `work` on this rank (none where it is empty) and returns when all ranks of the group have
// finished theirs. While any rank works, all exchange signs of life several times per
// cluster.timeout, so that no rank counts as silent however long the work takes. The work must not
// use the group. Throws what the work throws; the other ranks then lose this rank.
void wait_for_work(exec::Group& group, const job::Job& job, const std::function<void()>& work);

}  // namespace perigee::train
