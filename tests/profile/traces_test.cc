#include "profile/traces.h"

#include <nlohmann/json.hpp>
#include <thread>

#include "exec/kernels/kernels.h"
#include "exec/op_threads.h"
#include "tests/support/database_file.h"
#include "tests/support/torch_test.h"

namespace perigee::profile {
namespace {

using graph::DType;
using graph::ValueId;

compile::OpInstance product(int64_t n) {
  const graph::TensorType type{DType::float32, {n, n}};
  return {"aten::mm",
          {{"self", ValueId{0}}, {"mat2", ValueId{1}}},
          {type, type},
          {{n, 1}, {n, 1}},
          {type}};
}

TEST_CASE("a trace is recorded once and found afterwards") {
  const DatabaseFile file("traces");
  {
    Database database(file.path);
    TraceDatabase traces(database);
    REQUIRE(traces.find(product(8))->allocations == std::vector<int64_t>{256});
    REQUIRE(traces.find(product(8))->output_strides == std::vector<std::vector<int64_t>>{{8, 1}});
    REQUIRE(traces.find(product(16))->allocations == std::vector<int64_t>{1024});
    REQUIRE(traces.recorded() == 2);
  }
  Database database(file.path);
  TraceDatabase traces(database);
  REQUIRE(traces.find(product(8))->output_allocation == std::vector<int32_t>{0});
  REQUIRE(traces.recorded() == 0);
  // Allocations may depend on the number of threads.
  TraceDatabase two(database, 2);
  two.find(product(8));
  REQUIRE(two.recorded() == 1);
}

// The gradient of RMS norm: its kernel sums the rows of each thread on its own.
compile::OpInstance gradient_of_norm() {
  const graph::TensorType type{DType::float32, {64, 32}}, weight{DType::float32, {32}},
      rstd{DType::float32, {64, 1}};
  return {
      "perigee::rms_norm_backward",
      {{"grad", ValueId{0}}, {"self", ValueId{1}}, {"weight", ValueId{2}}, {"rstd", ValueId{3}}},
      {type, type, weight, rstd},
      {{32, 1}, {32, 1}, {1}, {1, 1}},
      {type, weight}};
}

// Calls `use` on a new thread whose ops use one thread, between two numbers that others set.
void between_other_threads(const std::function<void()>& use) {
  const exec::OpThreads kept(1);  // a new thread's ops begin with the number that was set last
  const auto set = [](int count) { std::thread([=] { exec::set_op_threads(count); }).join(); };
  set(1);
  std::thread([&] {
    exec::set_op_threads(1);
    set(3);
    use();
  }).join();
  set(1);
}

TEST_CASE("no thread changes the number of threads of another one's ops") {
  between_other_threads([] {
    const auto x = at::rand({64, 32}), weight = at::rand({32}), rstd = at::rand({64, 1});
    const auto instance = gradient_of_norm();
    const auto kernel = exec::cpu_kernel({instance.op, instance.args, instance.outputs});
    std::vector<at::Tensor> results(2);
    kernel(std::vector<at::Tensor>{x, x, weight, rstd}, results, {});
    CHECK(exec::op_threads() == 1);
  });
}

TEST_CASE("traces are those of their number of threads, whatever other threads set") {
  const DatabaseFile file("traces"), other("traces_between");
  Database database(file.path), second(other.path);
  const auto one = TraceDatabase(database, 1).find(gradient_of_norm());
  const auto three = TraceDatabase(database, 3).find(gradient_of_norm());
  REQUIRE(one);
  REQUIRE(three);
  CHECK(one->allocations != three->allocations);
  between_other_threads([&] {
    const auto found = TraceDatabase(second, 1).find(gradient_of_norm());
    REQUIRE(found);
    CHECK(found->allocations == one->allocations);
  });
}

TEST_CASE("an op that cannot run on zeros has no trace") {
  const DatabaseFile file("traces");
  Database database(file.path);
  TraceDatabase traces(database);
  const graph::TensorType type{DType::float64, {3, 3}};
  REQUIRE_FALSE(traces.find({"aten::cholesky", {{"self", ValueId{0}}}, {type}, {{3, 1}}, {type}}));
}

TEST_CASE("traces round trip") {
  const bool complete = GENERATE(true, false);
  const compile::OpTrace trace{{10, 20}, {{}, {0}}, {1, -1}, {{2, 1}, {}}, complete, 64};
  const auto back = parse_trace(print(trace)).value().value();
  REQUIRE(back.allocations == trace.allocations);
  REQUIRE(back.freed_before == trace.freed_before);
  REQUIRE(back.output_allocation == trace.output_allocation);
  REQUIRE(back.output_strides == trace.output_strides);
  REQUIRE(back.complete == complete);
  REQUIRE(back.worker_bytes == 64);
  REQUIRE(parse_trace("null")->has_value() == false);
  REQUIRE_FALSE(parse_trace("{\"allocations\":[1]}"));
  REQUIRE_FALSE(parse_trace("garbage"));
}

TEST_CASE("a trace whose numbers are not those of its allocations is no trace") {
  const auto with = [](const std::string& field, const std::string& value) {
    auto json = nlohmann::json::parse(
        print(compile::OpTrace{{10, 20}, {{}, {0}}, {1, -1}, {{2}, {}}}));
    json[field] = nlohmann::json::parse(value);
    return parse_trace(json.dump()).has_value();
  };
  CHECK(with("allocations", "[30, 0]"));
  CHECK_FALSE(with("allocations", "[-8, 0]"));
  CHECK_FALSE(with("allocations", "[8, 1e300]"));
  CHECK_FALSE(with("allocations", "[8]"));
  CHECK_FALSE(with("freed_before", "[[], [1]]"));
  CHECK_FALSE(with("freed_before", "[[], [-1]]"));
  CHECK_FALSE(with("freed_before", "[[]]"));
  CHECK_FALSE(with("output_allocation", "[2, 0]"));
  CHECK_FALSE(with("output_allocation", "[0]"));
  CHECK_FALSE(with("output_strides", "[[2]]"));
  CHECK_FALSE(with("output_strides", "[[-2], []]"));
  CHECK_FALSE(with("complete", "1"));
  CHECK_FALSE(with("worker_bytes", "\"8\""));
}

TEST_CASE("a kept trace that does not describe the op's results is recorded again") {
  const DatabaseFile file("traces");
  Database database(file.path);
  for (const compile::OpTrace& foreign :
       {compile::OpTrace{{8}, {{}}, {0, 0}, {{1}, {1}}}, compile::OpTrace{{8}, {{}}, {0}, {{1}}}}) {
    TraceDatabase traces(database);
    const auto instance = product(8);
    const auto kind = device_kind(*exec::cpu_device(), 1);
    database.put({"trace", kind, compile::key(instance)}, print(foreign));
    CHECK(traces.find(instance)->output_strides == std::vector<std::vector<int64_t>>{{8, 1}});
    CHECK(traces.recorded() == 1);
  }
}

}  // namespace
}  // namespace perigee::profile
