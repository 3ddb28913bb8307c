#include "search/model/message.h"

#include <algorithm>
#include <vector>

namespace perigee::search {
namespace {

// A range of a dim, as shares of its size.
struct Share {
  double begin = 0, end = 1;
};

Share share_of(int64_t part, int64_t parts) {
  const auto count = static_cast<double>(parts);
  return {static_cast<double>(part) / count, static_cast<double>(part + 1) / count};
}

double common(const Share& a, const Share& b) {
  return std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
}

// Bytes that one rank sends or receives, and the farthest rank of those messages.
struct Load {
  double bytes = 0;
  int64_t farthest = -1;
};

}  // namespace

double message_seconds(const MessageEnd& from, const MessageEnd& to, double bytes, bool split,
                       simulate::OpCosts& costs) {
  const auto& [tensor, data] = from.submesh;
  const auto& [tensors, datas] = to.submesh;
  const auto& cluster = costs.cluster();
  std::vector<Load> sent(static_cast<size_t>(from.submesh.ranks()));
  std::vector<Load> received(static_cast<size_t>(to.submesh.ranks()));
  const auto load = [&](Load& on, int64_t rank, int64_t other, double size) {
    on.bytes += size;
    if (on.farthest < 0 || cluster.level(rank, other) > cluster.level(rank, on.farthest)) {
      on.farthest = other;
    }
  };
  for (int64_t receiver = 0; receiver < to.submesh.ranks(); ++receiver) {
    const auto samples = share_of(receiver / tensors, datas);
    const auto part = split ? share_of(receiver % tensors, tensors) : Share();
    for (int64_t sender = 0; sender < from.submesh.ranks(); ++sender) {
      // Replicas of a box send alternately.
      if (!split && sender % tensor != receiver % tensor) continue;
      const double overlap = common(samples, share_of(sender / tensor, data)) *
                             common(part, split ? share_of(sender % tensor, tensor) : Share());
      if (overlap <= 1e-12) continue;
      load(sent[static_cast<size_t>(sender)], from.first + sender, to.first + receiver,
           overlap * bytes);
      load(received[static_cast<size_t>(receiver)], to.first + receiver, from.first + sender,
           overlap * bytes);
    }
  }
  double longest = 0;
  const auto add_longest = [&](const std::vector<Load>& loads, int64_t first) {
    for (size_t k = 0; k < loads.size(); ++k) {
      if (loads[k].farthest < 0) continue;
      const auto rank = first + static_cast<int64_t>(k);
      const auto time = costs.collective({.kind = cost::CollectiveKind::message,
                                          .ranks = {rank, loads[k].farthest},
                                          .bytes = loads[k].bytes});
      longest = std::max(longest, time.seconds);
    }
  };
  add_longest(sent, from.first);
  add_longest(received, to.first);
  return longest;
}

}  // namespace perigee::search
