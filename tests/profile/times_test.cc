#include "profile/times.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "tests/support/torch_test.h"

namespace perigee::profile {
namespace {

namespace fs = std::filesystem;

struct TimesFolder {
  fs::path path = fs::temp_directory_path() / ("perigee-times-" + std::to_string(::getpid()));
  ~TimesFolder() { fs::remove_all(path); }
};

// A collective between so many ranks of a host.
cost::ExchangeKind over(int64_t ranks,
                        cost::CollectiveKind kind = cost::CollectiveKind::all_reduce) {
  return {.kind = kind, .ranks = ranks, .level = "host"};
}

}  // namespace

TEST_CASE("a median's interval is narrow if samples agree") {
  CHECK(median_of({2, 2, 2, 2, 2}) == Measured{2, 0, 5});
  std::vector<double> spread;
  for (int i = 0; i < 21; ++i) spread.push_back(i % 2 ? 1 : 3);
  CHECK(median_of(spread) == Measured{3, 1, 21});
  CHECK(median_of({5, 1}) == Measured{3, 2, 2});
}

TEST_CASE("a mean counts occasional slow samples") {
  const auto mean = mean_of({1, 1, 1, 5});
  CHECK(mean.seconds == 2);
  CHECK(mean.interval == Approx(1.96 * 2 / 2));
  CHECK(mean.samples == 4);
  CHECK(mean_of({3}) == Measured{3, 0, 1});
}

TEST_CASE(
    "an op's time is the one measured with the same number of ranks, else the nearest number") {
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  TimeDatabase one(database, "cpu"), two(database, "cpu", 2), four(database, "cpu", 4);
  two.put("mm", {0.5, 0, 1});
  CHECK(four.op("mm") == 0.5);
  CHECK(one.op("mm") == 0.5);
  CHECK_FALSE(four.knows("mm"));
  CHECK_FALSE(one.knows("mm"));
  one.put("mm", {0.3, 0, 1});
  four.forget();
  CHECK(four.op("mm") == 0.5);
  CHECK(one.op("mm") == 0.3);
  CHECK(two.op("mm") == 0.5);
  CHECK_FALSE(TimeDatabase(database, "other", 2).op("mm"));
}

TEST_CASE("a collective's line is fitted to small sizes as well as large ones") {
  Points points;
  for (const double bytes : {256.0, 4096.0, 1e6, 6.4e7}) {
    points[bytes] = {5e-5 + bytes * 1e-9, 1e-6, 10};
  }
  const auto line = fit(points);
  CHECK(line.latency == Approx(5e-5));
  CHECK(line.per_byte == Approx(1e-9));
  // A point with a large uncertainty has no weight.
  points[4e6] = {5e-5 + 4e6 * 1e-8, 1, 10};
  CHECK(fit(points).per_byte == Approx(1e-9).epsilon(1e-3));
  // The fit is never negative.
  const auto odd = fit({{100, {1e-4, 0, 5}}, {1e6, {1e-5, 0, 5}}});
  CHECK(odd.per_byte == 0);
  CHECK(odd.latency > 0);
}

TEST_CASE("collectives of two carriers have times of their own") {
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  const auto all_reduce = over(2);
  TimeDatabase usual(database, "cpu", 2), gloo(database, "cpu", 2, "gloo");
  usual.put(all_reduce, {{8, {2e-6, 0, 1}}});
  CHECK_FALSE(gloo.knows(all_reduce, 8));
  gloo.forget();
  gloo.put(all_reduce, {{8, {2e-4, 0, 1}}});
  CHECK(TimeDatabase(database, "cpu", 2).collective(all_reduce, 8) == 2e-6);
  CHECK(TimeDatabase(database, "cpu", 2, "gloo").collective(all_reduce, 8) == 2e-4);
  gloo.put("mm", {0.5, 0, 1});
  CHECK(usual.op("mm") == 0.5);
}

TEST_CASE("times of collectives within a host are not those of collectives between hosts") {
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  const cost::Cluster one_host{.links = {{"host", 4, 1e-6, 1e9, ""}}};
  const cost::Cluster two_hosts{
      .links = {{"host", 2, 1e-6, 1e9, ""}, {"network", 4, 1e-4, 1e8, ""}}};
  const cost::Cluster four_hosts{.links = {{"network", 4, 1e-4, 1e8, ""}}};
  using Kind = cost::CollectiveKind;
  const std::vector<int64_t> all = {0, 1, 2, 3};
  {
    TimeDatabase times(database, "cpu", 2);
    times.put(cost::exchange_kind(one_host, Kind::all_reduce, all), {{8, {2e-6, 0, 1}}});
    times.put(cost::exchange_kind(two_hosts, Kind::all_reduce, {0, 1}), {{8, {1e-6, 0, 1}}});
    times.put(cost::exchange_kind(two_hosts, Kind::message, {1, 2}), {{8, {3e-4, 0, 1}}});
  }
  TimeDatabase times(database, "cpu", 2);
  const auto on = [&](const cost::Cluster& cluster, const std::vector<int64_t>& ranks,
                      Kind kind = Kind::all_reduce) {
    return times.collective(cluster, kind, 8, ranks);
  };
  CHECK(on(one_host, all) == 2e-6);
  CHECK_FALSE(on(two_hosts, all));
  CHECK_FALSE(on(four_hosts, all));
  CHECK(on(two_hosts, {2, 3}) == 1e-6);
  CHECK(on(one_host, {0, 2}) == 1e-6);
  CHECK_FALSE(on(two_hosts, {0, 2}));
  CHECK(on(two_hosts, {3, 0}, Kind::message) == 3e-4);
  CHECK(on(two_hosts, all, Kind::message) == 3e-4);  // a shift
  CHECK_FALSE(on(two_hosts, {0, 1}, Kind::message));
}

TEST_CASE("collectives of one size give no time for other sizes") {
  for (const double bytes : {8.0, 3e5, 1234567.0, 7e8}) {
    for (const double seconds : {3.1e-5, 7.3e-4, 0.0123}) {
      CHECK(fit({{bytes, {seconds, 0.01 * seconds, 9}}}).per_byte == 0);
    }
  }
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  TimeDatabase times(database, "this");
  const auto all_reduce = over(2);
  const auto all_gather = over(2, cost::CollectiveKind::all_gather);
  times.put(all_reduce, {{8, {2e-4, 0, 9}}});  // the size of a norm gives no time for gradients
  CHECK(times.collective(all_reduce, 8) == 2e-4);
  CHECK(times.collective(all_reduce, 12) == Approx(2e-4));
  CHECK_FALSE(times.collective(all_reduce, 1e8));
  times.put(all_reduce, {{64, {2.01e-4, 0, 9}}});  // nor do two sizes of a few bytes
  CHECK(times.collective(all_reduce, 24));
  CHECK_FALSE(times.collective(all_reduce, 1e8));
  times.put(all_reduce, {{1e7, {0.0102, 0, 9}}});
  CHECK(times.collective(all_reduce, 1e8) == Approx(0.1).epsilon(0.05));
  times.put(all_gather, {{1e8, {0.1, 0, 9}}});
  CHECK_FALSE(times.collective(all_gather, 8));
  CHECK(times.collective(all_gather, 1.5e8));
}

TEST_CASE("times are stored by device, exported and imported") {
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  TimeDatabase times(database, "this");
  CHECK_FALSE(times.op("mm"));
  times.put("mm", {0.5, 0.01, 7});
  const auto all_reduce = over(4);
  times.put(all_reduce, {{1e3, {1.1e-5, 0, 9}}, {1e7, {1.001e-2, 1e-4, 9}}});
  CHECK(times.op("mm") == 0.5);
  CHECK(times.collective(all_reduce, 1e6) == Approx(1e-5 + 1e-3));
  CHECK_FALSE(times.collective(over(2), 1e6));
  // A measurement within 5% of the size is used instead of the fitted line; later points are added.
  times.put(all_reduce, {{1e6, {5e-3, 0, 9}}});
  CHECK(times.knows(all_reduce, 1.04e6));
  CHECK_FALSE(times.knows(all_reduce, 1.1e6));
  TimeDatabase again(database, "this");
  CHECK(again.collective(all_reduce, 1.04e6) == 5e-3);
  CHECK(again.collective(all_reduce, 1e7) == 1.001e-2);
  CHECK(again.collective(all_reduce, 1e8) > 1.001e-2);
  CHECK_FALSE(TimeDatabase(database, "other").op("mm"));

  const auto text = export_json(database);
  Database copy((folder.path / "copy.sqlite").string());
  CHECK(import_json(copy, text, "export.json") == 2);
  CHECK(export_json(copy) == text);
  CHECK(TimeDatabase(copy, "this").op("mm") == 0.5);
  CHECK_THROWS_WITH(import_json(copy, "[]", "export.json"),
                    Catch::Contains("export.json must hold \"format\": \"perigee.profile/1\""));
}

TEST_CASE("an unknown field or an invalid cost is an error that names it") {
  TimesFolder folder;
  Database database((folder.path / "profile.sqlite").string());
  const auto why = [&](const std::string& kind, const std::string& value) -> std::string {
    const auto text = fmt::format(
        R"({{"format": "perigee.profile/1", "entries": [{{"kind": "{}", "device": "d", )"
        R"("content": "mm x", "value": {}}}]}})",
        kind, value);
    try {
      import_json(database, text, "e.json");
    } catch (const Error& error) {
      CHECK(database.all().empty());
      return error.what();
    }
    return "";
  };
  const std::string at = "[profile] e.json: entries[0].value";
  const std::string number = " must be a finite number (up to 1e18) of at least 0, but is ";
  CHECK(why("time", R"({"second": 1, "seconds": 1})") ==
        at + ".second is unknown: a time (mm x) has seconds, interval, samples, did you mean "
             "\"seconds\"?");
  CHECK(why("time", R"({"samples": 1})") == at + " needs seconds, but a time (mm x) has none");
  CHECK(why("time", R"({"seconds": -1})") == at + ".seconds" + number + "-1");
  CHECK(why("time", R"({"seconds": null})") == at + ".seconds" + number + "null");
  CHECK(why("time", R"({"seconds": 1, "interval": -1})") == at + ".interval" + number + "-1");
  CHECK(why("time", "3").starts_with(at + " must be an object"));
  const std::string line = R"("latency": 1, "per_byte": 0)";
  CHECK(why("collective", "{" + line + R"(, "bandwidth": 3})") ==
        at + ".bandwidth is unknown: a collective (mm x) has latency, per_byte, interval, points");
  CHECK(why("collective", R"({"latency": -1, "per_byte": 0})") == at + ".latency" + number + "-1");
  CHECK(why("collective", R"({"latency": 1, "per_byte": -2})") == at + ".per_byte" + number + "-2");
  CHECK(why("collective", "{" + line + R"(, "points": 3})") == at + ".points must be a list");
  CHECK(why("collective", "{" + line + R"(, "points": [{"bytes": 1, "seconds": -1}]})") ==
        at + ".points[0].seconds" + number + "-1");
  CHECK_THAT(why("collective", "{" + line + R"(, "points": [{"bytes": 1, "time": 1}]})"),
             Catch::StartsWith(at + ".points[0].time is unknown: a point of a collective"));
  const std::string trace =
      R"("freed_before": [[]], "output_allocation": [0], "output_strides": [[1]])";
  CHECK_THAT(why("trace", R"({"allocations": [-8], )" + trace + "}"),
             Catch::StartsWith(at + " must be a trace"));
  CHECK_THAT(why("trace", R"({"allocations": [8], "stream": 1, )" + trace + "}"),
             Catch::StartsWith(at + ".stream is unknown"));
  CHECK_THAT(why("tme", R"({"seconds": 1})"), Catch::Contains("but is of kind \"tme\""));
  CHECK(database.all().empty());
  CHECK(why("trace", R"({"allocations": [8], )" + trace + "}") == "");
  CHECK(database.all().size() == 1);
  CHECK_THROWS_WITH(
      import_json(database, R"({"format": "perigee.profile/1", "entries": [], "entry": 1})",
                  "e.json"),
      Catch::Contains("e.json.entry is unknown: an export has format, entries"));
}

}  // namespace perigee::profile
