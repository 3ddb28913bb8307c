// The launcher under the address sanitizer, with 2,000 descriptors that its parent has left open:
// its own have larger numbers than a select() takes. Exits with 0 where two ranks train and one
// that fails is reported, with 77 where the system permits no such number.
#include <fcntl.h>
#include <sys/resource.h>

#include "base/error.h"
#include "tools/perigee/launch/launch.h"
#include "tools/perigee/launch/limits.h"

using namespace perigee;

int main() {
  constexpr int kInherited = 2000;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_max < kInherited + 100) return 77;
  command::provide_descriptors(2);
  for (int i = 0; i < kInherited; ++i) {
    if (::open("/dev/null", O_RDONLY) < 0) return 77;
  }
  const auto place_is_right = [](const command::Place& place) {
    return place.rank == place.local_rank && place.world == 2 ? 0 : 4;
  };
  if (command::launch({.ranks = 2}, place_is_right) != 0) return 1;
  const auto fails = [](const command::Place& place) -> int {
    throw Error(Status::failed, "test", place.rank == 0 ? "first" : "second");
  };
  return command::launch({.ranks = 2, .max_restarts = 1, .backoff_seconds = 0.01}, fails) == 1 ? 0
                                                                                               : 1;
}
