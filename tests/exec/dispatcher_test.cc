// Ops that a graph, a plan or a replacement names.
#include "exec/ops/dispatcher.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <filesystem>
#include <set>
#include <string>

#include "base/error.h"
#include "tests/support/torch_test.h"

using Catch::Matchers::Contains;
using perigee::exec::dispatcher_kernel;
using perigee::exec::dispatcher_kernel_on;
using perigee::exec::Op;

TEST_CASE("ops that read or write files, and overloads with out, are refused") {
  const std::string file = "/tmp/perigee_dispatcher_test";
  std::filesystem::remove(file);
  const Op from_file{.name = "aten::from_file",
                     .args = {{"filename", file}, {"shared", true}, {"size", int64_t{16}}},
                     .outputs = {}};
  CHECK_THROWS_WITH(dispatcher_kernel(from_file), Contains("aten::from_file takes \"filename\""));
  auto out = from_file;
  out.name = "aten::from_file.out";
  CHECK_THROWS_WITH(dispatcher_kernel(out), Contains("aten::from_file.out"));
  CHECK(!std::filesystem::exists(file));
  CHECK_THROWS_WITH(dispatcher_kernel({.name = "aten::add.out", .args = {}, .outputs = {}}),
                    Contains("writes to \"out\""));
  CHECK_THROWS_WITH(
      dispatcher_kernel({.name = "profiler::_record_function_enter", .args = {}, .outputs = {}}),
      Contains("takes \"name\""));
  // Text arguments that select an algorithm are allowed.
  CHECK_NOTHROW(dispatcher_kernel(
      {.name = "aten::gelu", .args = {{"self", perigee::graph::ValueId{0}}}, .outputs = {}}));
}

TEST_CASE("ops without operands make their results on the device that is asked for") {
  const Op arange{.name = "aten::arange",
                  .args = {{"end", int64_t{4}}},
                  .outputs = {perigee::graph::TensorType{perigee::graph::DType::int64, {4}}}};
  std::vector<at::Tensor> out(1);
  dispatcher_kernel(arange)({}, out, {});
  CHECK(out[0].device() == at::Device(at::kCPU));
  dispatcher_kernel_on(at::kMeta, arange)({}, out, {});
  CHECK(out[0].device() == at::Device(at::kMeta));
  // An op that may move its operand leaves it where it is.
  const Op cast{
      .name = "aten::_to_copy",
      .args = {{"self", perigee::graph::ValueId{0}}, {"dtype", perigee::graph::DType::float64}},
      .outputs = {perigee::graph::TensorType{perigee::graph::DType::float64, {2}}}};
  const std::vector<at::Tensor> in = {at::ones({2}, at::kMeta)};
  dispatcher_kernel_on(at::kMeta, cast)(in, out, {});
  CHECK(out[0].device() == at::Device(at::kMeta));
}

// LibTorch's ops with a text argument that selects no algorithm: a path, a message, the name of a
// dim. A new version of LibTorch may add ops: study their kernels before listing them.
TEST_CASE(
    "exactly the ops without text arguments and out, or with known text options, are allowed") {
  std::set<std::string> refused;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle || full.find("ame") != full.npos) continue;  // named dims
    bool has_name = false, has_out = false;
    for (const auto& argument : handle->schema().arguments()) {
      has_out = has_out || argument.is_out();
      has_name = has_name || argument.type()->str().find("Dimname") != std::string::npos;
    }
    if (has_out || has_name) continue;
    try {
      dispatcher_kernel({.name = full, .args = {}, .outputs = {}});
    } catch (const perigee::Error& error) {
      if (std::string(error.what()).find("ops compute from tensors") != std::string::npos) {
        refused.insert(full);
      }
    }
  }
  const std::set<std::string> expected{
      "aten::_assert_async.msg", "aten::_assert_scalar", "aten::_functional_assert_async.msg",
      "aten::_functional_assert_scalar", "aten::_print", "aten::_test_ambiguous_defaults.b",
      "aten::_test_string_default", "aten::from_file",
      // Streams and storages are refused, too.
      "aten::record_stream", "aten::set.source_Storage", "aten::set.source_Storage_storage_offset",
      "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset"};
  CHECK(refused == expected);
}
