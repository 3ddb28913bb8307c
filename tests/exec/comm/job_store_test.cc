// The job's store through c10d's interface. tests/base/store_test.cc tests its server.
#include "exec/comm/job_store.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "base/error.h"
#include "base/network/address.h"
#include "exec/comm/job_secret.h"
#include "tests/exec/processes.h"

namespace perigee::exec {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Bytes = std::vector<uint8_t>;

JobStoreOptions serving(const std::string& secret = "secret") {
  const auto listener = listen_at("127.0.0.1", 0, false);
  return {
      .port = listener.port, .secret = secret, .timeout = 20s, .listen_socket = listener.socket};
}

JobStoreOptions joining(const JobStoreOptions& server, int64_t rank) {
  auto options = server;
  options.rank = rank;
  options.listen_socket = -1;
  return options;
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

}  // namespace

TEST_CASE("the keyed hash is HMAC-SHA256") {
  // RFC 4231, test cases 1 and 2, and the empty key and text.
  CHECK(hex(keyed_hash(std::string(20, '\x0b'))("Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(keyed_hash("Jefe")("what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(keyed_hash("")("")) ==
        "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST_CASE("c10d's operations read and write the job's store") {
  const auto options = serving();
  const auto store = c10::make_intrusive<JobStore>(options);
  const auto other = c10::make_intrusive<JobStore>(joining(options, 1));
  store->set("a", std::string("1"));
  CHECK(other->get_to_str("a") == "1");
  CHECK(other->add("n", 3) == 3);
  CHECK(store->add("n", -5) == -2);
  CHECK(other->compareSet("c", std::string(), std::string("x")) == "x");
  CHECK(store->compareSet("c", std::string("y"), std::string("z")) == "x");
  other->append("a", Bytes{'2'});
  store->multiSet({"m", "empty"}, {Bytes{7, 0, 9}, Bytes{}});
  CHECK(other->multiGet({"empty", "m", "a"}) ==
        std::vector<Bytes>{Bytes{}, Bytes{7, 0, 9}, Bytes{'1', '2'}});
  CHECK(store->check({"a", "m"}));
  CHECK_FALSE(store->check({"a", "none"}));
  CHECK(store->getNumKeys() == 5);
  CHECK(store->deleteKey("a"));
  CHECK_FALSE(store->deleteKey("a"));
  CHECK(store->hasExtendedApi());
  CHECK_THROWS(store->multiSet({"a"}, {}));
  c10d::PrefixStore prefixed("p", store);
  prefixed.set("k", Bytes{1});
  CHECK(other->get("p/k") == Bytes{1});
}

TEST_CASE("get and wait throw c10d's error after the time-out") {
  const auto store = c10::make_intrusive<JobStore>(serving());
  const auto clone = store->clone();
  clone->setTimeout(20ms);
  CHECK(store->getTimeout() == 20s);
  CHECK_THROWS_AS(clone->get("none"), c10::DistStoreError);
  CHECK_THROWS_AS(clone->wait({"none"}), c10::DistStoreError);
  CHECK_THROWS_AS(store->wait({"none"}, 20ms), c10::DistStoreError);
  CHECK_THROWS_WITH(store->wait({"none", "other"}, 20ms), Contains("none, other"));
  clone->set("none", Bytes{1});
  CHECK(store->get("none") == Bytes{1});
}

TEST_CASE("a thread that waits for a key does not block the others") {
  const auto store = c10::make_intrusive<JobStore>(serving());
  auto value = std::async(std::launch::async, [&] { return store->get_to_str("k"); });
  CHECK_FALSE(store->check({"k"}));
  CHECK(value.wait_for(20ms) == std::future_status::timeout);
  store->set("k", std::string("v"));
  CHECK(value.get() == "v");
}

TEST_CASE("a rank without the job's secret is refused, and the error names the remedy") {
  const auto options = serving();
  const auto store = c10::make_intrusive<JobStore>(options);
  auto wrong = joining(options, 3);
  wrong.secret = "guess";
  CHECK_THROWS_WITH(JobStore(wrong),
                    "[communicator] rank 3 must know the job's secret (PERIGEE_SECRET or "
                    "--secret-file), but the store refuses it");
  wrong.secret = "";
  CHECK_THROWS_AS(JobStore(wrong), Error);
  CHECK(store->getNumKeys() == 0);
}

TEST_CASE("a clone keeps the server alive, and after its end requests are network errors") {
  const auto options = serving();
  auto store = c10::make_intrusive<JobStore>(options);
  auto clone = store->clone();
  const auto other = c10::make_intrusive<JobStore>(joining(options, 1));
  store.reset();
  other->set("k", std::string("v"));
  CHECK(clone->get_to_str("k") == "v");
  clone.reset();
  CHECK_THROWS_AS(other->get("k"), c10::DistNetworkError);
}

TEST_CASE("Gloo ranks rendezvous through the job's store and all-reduce") {
  const auto errors = fork_ranks(2, [](Communicator& communicator) {
    auto value = at::full({3}, static_cast<double>(communicator.rank() + 1));
    auto sum = at::empty({3});
    communicator.group("pair", {0, 1})
        ->run({.kind = Collective::Kind::all_reduce, .input = value, .output = sum});
    must(sum.equal(at::full({3}, 3.0)), "sum of both ranks");
  });
  CHECK(errors == std::vector<std::string>{"", ""});
}

}  // namespace perigee::exec
