// Reductions over ranks at the limits of the numbers' types, on every communicator.
#include <cmath>
#include <limits>

#include "exec/comm/threads.h"
#include "mesh/placement.h"
#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using mesh::Reduce;
using namespace std::chrono_literals;

constexpr int64_t kNumbers = 500;

// Checks an all-reduce and a reduce-scatter of this rank's numbers. A NaN is equal to a NaN.
void check_reduction(Group& group, const at::Tensor& mine, Reduce reduce,
                     const at::Tensor& expected) {
  const auto check = [](const at::Tensor& out, const at::Tensor& wanted, const std::string& what) {
    must(at::equal(out.isnan(), wanted.isnan()) && at::equal(out.nan_to_num(), wanted.nan_to_num()),
         what + " of " + c10::toString(out.scalar_type()));
  };
  const auto out = at::empty_like(mine);
  group.run({.kind = Collective::Kind::all_reduce, .input = mine, .output = out, .reduce = reduce});
  check(out, expected, "all_reduce");
  const auto own = mesh::split(kNumbers, group.size(), group.index());
  const auto part = at::empty({own.length}, mine.options());
  group.run(
      {.kind = Collective::Kind::reduce_scatter, .input = mine, .output = part, .reduce = reduce});
  check(part, expected.narrow(0, own.begin, own.length), "reduce_scatter");
}

void check_limits(Communicator& communicator) {
  const int64_t n = communicator.world(), me = communicator.rank();
  const auto group = communicator.group("data", range(n));
  for (const auto& [type, most] : {std::pair{at::kByte, int64_t{255}},
                                   {at::kShort, 32767},
                                   {at::kLong, std::numeric_limits<int64_t>::max()}}) {
    const auto largest = at::full({kNumbers}, most, type);
    check_reduction(*group, largest, Reduce::average, largest);
  }
  const auto place = at::arange(kNumbers).remainder(3);
  const auto all = place.eq(0), any = place.ne(2);  // true on all ranks, true on one
  for (const auto& [reduce, expected] : {std::pair{Reduce::sum, any},
                                         {Reduce::average, all},
                                         {Reduce::max, any},
                                         {Reduce::min, all}}) {
    check_reduction(*group, me == n - 1 ? any : all, reduce, expected);
  }
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const auto reduce : {Reduce::max, Reduce::min}) {
      for (int64_t rank = 0; rank < n; ++rank) {
        const auto mine = at::full({kNumbers}, me, at::kDouble).to(type);
        const auto expected = at::full_like(mine, reduce == Reduce::max ? n - 1 : 0);
        if (me == rank) mine[17] = NAN;
        expected[17] = NAN;
        check_reduction(*group, mine, reduce, expected);
      }
    }
  }
}

TEST_CASE("averages of integers and largest numbers with a NaN are right between threads") {
  run_ranks(3, check_limits, {.timeout = 30s});
}

TEST_CASE("averages of integers and largest numbers with a NaN are right between processes") {
  const auto carrier = GENERATE(Carrier::gloo, Carrier::shared);
  for (const auto& error : fork_ranks(3, check_limits, 20s, carrier)) CHECK(error == "");
}

TEST_CASE("averages of integers and largest numbers with a NaN are right over several hosts") {
  const auto hosts = GENERATE("AAB", "AABB", "ABCAB");
  for (const auto& error : fork_over_hosts(hosts, check_limits)) CHECK(error == "");
}

}  // namespace
}  // namespace perigee::exec
