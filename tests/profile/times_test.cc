#include "profile/times.h"

#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "exec/device.h"
#include "profile/measure.h"
#include "profile/traces.h"
#include "tests/support/torch_test.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

struct Folder {
  fs::path path = fs::temp_directory_path() / ("perigee-times-" + std::to_string(::getpid()));
  ~Folder() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("a median's interval is narrow where samples agree, and the budget ends the rest") {
  int calls = 0;
  const auto same = median_of(
      [&] {
        ++calls;
        return 2.0;
      },
      {.budget = 10, .precision = 0.01, .fewest = 5});
  CHECK(same == Measured{2, 0, 5});
  CHECK(calls == 5);
  const auto spread = median_of([&] { return ++calls % 2 ? 1.0 : 3.0; },
                                {.budget = 0, .precision = 0.01, .fewest = 21});
  CHECK(spread.samples == 21);
  CHECK(spread.interval == 1);
}

TEST_CASE("a collective's line is fitted to what is near 0 as to what is large") {
  std::vector<std::pair<double, Measured>> points;
  for (const double bytes : {256.0, 4096.0, 1e6, 6.4e7}) {
    points.push_back({bytes, {5e-5 + bytes * 1e-9, 1e-6, 10}});
  }
  const auto line = fit(points);
  CHECK(line.latency == Approx(5e-5));
  CHECK(line.per_byte == Approx(1e-9));
  // Never below 0, whatever was measured.
  const auto odd = fit({{100, {1e-4, 0, 5}}, {1e6, {1e-5, 0, 5}}});
  CHECK(odd.per_byte == 0);
  CHECK(odd.latency > 0);
}

TEST_CASE("an op that is measured takes longer the larger it is, in place or not") {
  Folder folder;
  Database database((folder.path / "profile.sqlite").string());
  const auto device = exec::cpu_device();
  TraceDatabase traces(database, 1, device);
  using graph::DType;
  using graph::ValueId;
  const auto product = [](int64_t n) {
    compile::OpInstance op{.op = "aten::mm",
                           .args = {{"self", ValueId{0}}, {"mat2", ValueId{1}}},
                           .operands = {{DType::float32, {n, n}}, {DType::float32, {n, n}}},
                           .operand_strides = {{n, 1}, {1, n}},
                           .outputs = {graph::TensorType{DType::float32, {n, n}}}};
    return op;
  };
  const Effort effort{.budget = 0.05};
  const auto small = measure(product(32), traces, device, 1, effort);
  const auto large = measure(product(256), traces, device, 1, effort);
  REQUIRE((small && large));
  CHECK(large->seconds > small->seconds);
  const compile::OpInstance add{.op = "perigee::accumulate_",
                                .args = {{"self", ValueId{0}}, {"other", ValueId{1}}},
                                .operands = {{DType::float32, {4096}}, {DType::float32, {4096}}},
                                .operand_strides = {{1}, {1}},
                                .outputs = {}};
  const auto added = measure(add, traces, device, 1, effort);
  REQUIRE(added);
  CHECK(added->seconds > 0);
  CHECK(added->samples >= effort.fewest);
}

TEST_CASE("times are kept by device, exported and imported") {
  Folder folder;
  Database database((folder.path / "profile.sqlite").string());
  TimeDatabase times(database, "this");
  CHECK_FALSE(times.op("mm"));
  times.put("mm", {0.5, 0.01, 7});
  times.put(cost::CollectiveKind::all_reduce, 4, {1e-5, 1e-9, 0.1});
  CHECK(times.op("mm") == 0.5);
  CHECK(times.collective(cost::CollectiveKind::all_reduce, 4, 1e6) == Approx(1e-5 + 1e-3));
  CHECK_FALSE(times.collective(cost::CollectiveKind::all_reduce, 2, 1e6));
  CHECK_FALSE(TimeDatabase(database, "other").op("mm"));

  const auto text = export_json(database);
  Database copy((folder.path / "copy.sqlite").string());
  CHECK(import_json(copy, text, "export.json") == 2);
  CHECK(export_json(copy) == text);
  CHECK(TimeDatabase(copy, "this").op("mm") == 0.5);
  CHECK_THROWS_WITH(import_json(copy, "[]", "export.json"),
                    Catch::Contains("export.json must hold \"format\": \"perigee.profile/1\""));
  CHECK_THROWS_WITH(
      import_json(copy,
                  R"({"format":"perigee.profile/1","entries":[{"kind":"collective","device":"d",)"
                  R"("content":"c","value":{"latency":null}}]})",
                  "export.json"),
      Catch::Contains("entries[0] must be a trace, or times that are finite and at least 0"));
}

}  // namespace perigee::profile
