#include "exec/comm/threads.h"
#include "exec/cuda.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using mesh::Reduce;

// Returns the device of the ranks' tensors: GPU 0 if there is one.
at::Device tensors_on() {
  return cuda_host().gpus().found.empty() ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

// Runs each collective through the host and directly, on the same operands.
TEST_CASE("collectives through the host equal those of the host's communicator") {
  const int64_t n = GENERATE(1, 2, 3);
  const auto device = tensors_on();
  run_ranks(n, [&](Communicator& direct) {
    const auto through = cuda_host().by_host(
        std::shared_ptr<Communicator>(std::shared_ptr<void>(), &direct));
    std::vector<int64_t> ranks(n);
    for (int64_t i = 0; i < n; ++i) ranks[i] = i;
    const auto plain = direct.group("plain", ranks);
    const auto wrapped = through->group("wrapped", ranks);
    const auto me = direct.rank();
    const auto same = [&](Collective c, std::vector<int64_t> result) {
      c.output = at::full(result, -1.0);
      plain->run(c);
      const auto expected = c.output;
      if (c.input.defined()) c.input = c.input.to(device);
      c.output = at::full(result, -1.0, at::TensorOptions().device(device));
      wrapped->run(c);
      if (!at::equal(c.output.cpu(), expected)) {
        throw std::runtime_error("differs: " + std::string(name_of(c.kind)));
      }
    };
    const auto mine = at::arange(35, at::kFloat).view({5, 7}) + static_cast<double>(me);
    for (auto reduce : {Reduce::sum, Reduce::average, Reduce::max, Reduce::min}) {
      same({.kind = Collective::Kind::all_reduce, .input = mine, .reduce = reduce}, {5, 7});
    }
    for (int64_t dim : {0, 1}) {
      auto shape = mine.sizes().vec();
      const auto part = mesh::split(shape[dim], n, me);
      same({.kind = Collective::Kind::all_gather,
            .input = mine.narrow(dim, part.begin, part.length),
            .dim = dim},
           shape);
      shape[dim] = part.length;
      same({.kind = Collective::Kind::reduce_scatter, .input = mine, .dim = dim}, shape);
      const auto other = 1 - dim, whole = mine.size(other);
      const auto turned = mesh::split(whole, n, me);
      auto to = mine.sizes().vec();
      to[other] = turned.length;
      same({.kind = Collective::Kind::all_to_all,
            .input = mine.narrow(dim, part.begin, part.length),
            .dim = other,
            .other_dim = dim},
           to);
    }
    same({.kind = Collective::Kind::broadcast,
          .input = me == n - 1 ? mine : at::Tensor(),
          .peer = n - 1},
         {5, 7});
    if (n > 1) {
      const auto next = (me + 1) % n, before = (me + n - 1) % n;
      const auto sent = mine.to(device);
      const auto out = at::zeros({5, 7}, sent.options());
      const auto sending = wrapped->start(
          {.kind = Collective::Kind::send, .input = sent, .peer = next});
      wrapped->run({.kind = Collective::Kind::receive, .output = out, .peer = before});
      sending->wait();
      const auto expected = at::arange(35, at::kFloat).view({5, 7}) + static_cast<double>(before);
      if (!at::equal(out.cpu(), expected)) throw std::runtime_error("a message differs");
    }
    wrapped->run({.kind = Collective::Kind::barrier});
  });
}

TEST_CASE("a rank's failure ends the other ranks' waits through the host") {
  CHECK_THROWS_WITH(
      run_ranks(2,
                [](Communicator& direct) {
                  const auto through = cuda_host().by_host(
                      std::shared_ptr<Communicator>(std::shared_ptr<void>(), &direct));
                  if (direct.rank() == 1) throw std::runtime_error("out of coffee");
                  auto t = at::ones({3});
                  through->group("data", {0, 1})
                      ->run({.kind = Collective::Kind::all_reduce, .input = t, .output = t});
                }),
      Catch::Contains("out of coffee"));
}

}  // namespace
}  // namespace perigee::exec
