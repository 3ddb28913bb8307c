// A communicator whose messages from rank to rank go another way than its collectives.
#pragma once

#include <memory>

#include "exec/comm/communicator.h"

namespace perigee::exec {

// Returns a communicator of the ranks of both, whose groups send and receive by `messages` and run
// all other collectives by `collectives`. A group is made by both, in this order.
std::shared_ptr<Communicator> with_messages(std::shared_ptr<Communicator> collectives,
                                            std::shared_ptr<Communicator> messages);

}  // namespace perigee::exec
