#include "cuda/ops/random_place.h"
#include "exec/tensor.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

// Blocks: whole, sharded in one dim, sharded in all dims, and of later microbatches.
struct Block {
  std::vector<int64_t> local, global, begin;
  int64_t batch_dim = 0;
  exec::Draw draw = {};
};
const std::vector<Block> kBlocks = {
    {{1037}, {}, {}},
    {{}, {}, {}, 0, {.microbatch = 3, .microbatches = 4}},
    {{4, 7}, {8, 7}, {4, 0}, 0, {.microbatch = 1, .microbatches = 2}},
    {{3, 5, 6}, {4, 9, 11}, {1, 2, 3}, 0, {.microbatch = 2, .microbatches = 3}},
    {{3, 5, 6}, {4, 9, 11}, {1, 2, 3}, 2, {.microbatch = 2, .microbatches = 3}},
    {{2, 3, 1, 4, 5}, {2, 6, 2, 4, 6}, {0, 3, 1, 0, 1}, -1},
    {{0, 4}, {2, 4}, {2, 0}},
};
const exec::RandomStream kStream = {.seed = 0x123456789ABCDEFull, .key = 77, .step = 5};

exec::RandomBlock block_of(const Block& block) {
  return {block.local, block.global, block.begin, block.batch_dim, block.draw};
}

// The device's code, compiled for the host.
template <class T>
at::Tensor drawn(const Block& block, const exec::Distribution& distribution) {
  at::Tensor out = at::empty(block.local, c10::CppTypeToScalarType<T>::value);
  const auto place = place_of(kStream, block_of(block));
  const auto drawing = drawing_of(distribution, out.scalar_type());
  T* data = out.mutable_data_ptr<T>();
  each_random(place, 0, place.numel, [&](int64_t i, const exec::PhiloxWords& words, int lane) {
    data[i] = drawing.kind == Drawing::integer
                  ? static_cast<T>(exec::integer_of(words.w[lane], drawing.low, drawing.range))
                  : static_cast<T>(draw(drawing, words, lane));
  });
  return out;
}

template <class T>
void compare(const Block& block, const exec::Distribution& distribution) {
  at::Tensor expected = at::empty(block.local, c10::CppTypeToScalarType<T>::value);
  exec::fill_random(expected, distribution, kStream, block_of(block));
  CHECK(at::equal(drawn<T>(block, distribution), expected));
}

TEST_CASE("the device's random numbers, compiled for the host, are bit-equal to the CPU's") {
  for (const auto& block : kBlocks) {
    INFO(block.local << " of " << block.global);
    for (const auto& distribution :
         {exec::Distribution{exec::Distribution::Kind::uniform, -0.3, 1.7},
          {exec::Distribution::Kind::normal, 0.1, 2.5},
          {exec::Distribution::Kind::exponential, 0, 0},
          {exec::Distribution::Kind::bernoulli, 0.3, 0},
          {exec::Distribution::Kind::integer, -3, 12}}) {
      compare<float>(block, distribution);
      compare<double>(block, distribution);
      compare<c10::BFloat16>(block, distribution);
      compare<c10::Half>(block, distribution);
    }
    compare<int64_t>(block, {exec::Distribution::Kind::integer, -3, 4e9});
    compare<bool>(block, {exec::Distribution::Kind::bernoulli, 0.4, 0});
  }
}

TEST_CASE("the device drops the elements that the CPU drops") {
  for (const auto& block : kBlocks) {
    INFO(block.local << " of " << block.global);
    for (double p : {0.0, 0.1, 0.5, 1.0}) {
      const auto ones = at::ones(block.local);
      auto expected = at::empty_like(ones);
      exec::dropout(ones, expected, p, kStream, block_of(block));
      auto out = at::zeros(block.local);
      const auto place = place_of(kStream, block_of(block));
      const auto threshold = exec::drop_threshold(p);
      float* data = out.mutable_data_ptr<float>();
      each_random(place, 0, place.numel, [&](int64_t i, const exec::PhiloxWords& words, int lane) {
        if (keeps(threshold, words, lane)) data[i] = static_cast<float>(1 / (1 - p));
      });
      CHECK(at::equal(out, expected));
    }
  }
}

TEST_CASE("a thread of the device can begin at any element of a block of random numbers") {
  const Block block = kBlocks[3];
  const auto place = place_of(kStream, block_of(block));
  const auto whole = drawn<float>(block, {exec::Distribution::Kind::uniform, 0, 1});
  const auto drawing = drawing_of({exec::Distribution::Kind::uniform, 0, 1}, at::kFloat);
  for (int64_t begin = 0; begin < place.numel; begin += 4) {
    each_random(place, begin, std::min(begin + 4, place.numel),
                [&](int64_t i, const exec::PhiloxWords& words, int lane) {
                  REQUIRE(static_cast<float>(draw(drawing, words, lane)) ==
                          whole.const_data_ptr<float>()[i]);
                });
  }
}

TEST_CASE("a block sharded in more dims than a kernel supports is refused") {
  const std::vector<int64_t> local(12, 1), global(12, 2), begin(12, 0);
  CHECK_THROWS_WITH(place_of(kStream, {local, global, begin, 0, {}}),
                    Catch::Contains("may be cut in at most 8 dims on a GPU"));
}

}  // namespace
}  // namespace perigee::cuda
