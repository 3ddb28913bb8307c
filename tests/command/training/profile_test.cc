// Profiles through the command: measured, moved, and of another device.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/planning/planned_job.h"

using namespace perigee::test;
using nlohmann::json;

TEST_CASE("a profile is measured once, moves between machines and gives measured predictions") {
  Folder folder;
  const auto job = write_job(folder, "kind = \"mlp\"\nlayers = 2\nwidth = 64\n");
  const std::string about = job + " --strategy ddp --nproc 2";
  const auto before = json::parse(run("simulate " + about + " --json", own_cache(folder)).out);
  CHECK(before["measured_share"] == 0);
  const auto first = run("profile " + about + " --seconds 20", own_cache(folder));
  REQUIRE(first.status == 0);
  CHECK_THAT(first.out, Catch::Contains(" measured, 0 known before"));
  const auto second = run("profile " + about + " --seconds 20", own_cache(folder));
  CHECK_THAT(second.out, Catch::Contains(": 0 measured, "));
  const auto third = run(
      "profile " + about + " --seconds 20 --set profile.again=true --set profile.parallel=false",
      own_cache(folder));
  REQUIRE(third.status == 0);
  CHECK_THAT(third.out, !Catch::Contains(": 0 measured, "));
  CHECK_THAT(third.out, Catch::Contains(" measured, 0 known before"));
  const auto after = json::parse(run("simulate " + about + " --json", own_cache(folder)).out);
  CHECK(after["measured_share"].get<double>() > 0.9);
  CHECK(after["step_seconds"].get<double>() > 0);

  REQUIRE(run("profile --export " + (folder / "profile.json"), own_cache(folder)).status == 0);
  // A device file is written to, and stays one.
  CHECK(run("profile --export /dev/full", own_cache(folder)).status == 1);
  CHECK(std::filesystem::is_character_file("/dev/full"));
  const auto shown = run("profile --export /dev/stdout", own_cache(folder)).out;
  CHECK_THAT(shown,
             Catch::Contains("\"perigee.profile/1\"") && Catch::Contains("is in /dev/stdout"));
  Folder other;
  const auto imported = run("profile --import " + (folder / "profile.json"), own_cache(other));
  REQUIRE(imported.status == 0);
  CHECK(json::parse(run("simulate " + about + " --json", own_cache(other)).out)["step_seconds"] ==
        after["step_seconds"]);
  const auto broken = folder.write(
      "broken.json",
      R"({"format":"perigee.profile/1","entries":[{"kind":"time","device":"d","content":"c",)"
      R"("value":{"seconds":SECONDS}}]})");
  for (const std::string seconds : {"-1", "1e300"}) {
    auto text = read(broken);
    text.replace(text.find("SECONDS"), 7, seconds);
    const auto refused = run("profile --import " + folder.write("one.json", text),
                             own_cache(other));
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Catch::Contains("entries[0].value.seconds must be a finite number"));
  }
}

TEST_CASE("a profile of many layers measures as much as one of few, and predicts all") {
  Folder folder;
  const auto about = [&](int layers, const std::string& strategy) {
    return folder.write("job.toml", kPlannedJob) + " --strategy " + strategy + " --nproc 2" +
           " --set model.layers=" + std::to_string(layers);
  };
  for (const std::string strategy : {"ddp", "fsdp"}) {
    INFO(strategy);
    Folder few, many;
    const auto first = run("profile " + about(4, strategy) + " --seconds 20", own_cache(few));
    const auto second = run("profile " + about(16, strategy) + " --seconds 20", own_cache(many));
    REQUIRE(first.status == 0);
    INFO(second.err);
    REQUIRE(second.status == 0);
    CHECK_THAT(first.out, !Catch::Contains("left out"));
    CHECK_THAT(second.out, Catch::Contains("12 repeated blocks were left out"));
    // Buckets have other boundaries, so a few have other sizes.
    CHECK(std::abs(std::stoi(first.out) - std::stoi(second.out)) <= 5);
    const auto predicted = json::parse(
        run("simulate " + about(16, strategy) + " --json", own_cache(many)).out);
    CHECK(predicted["measured_share"].get<double>() > 0.99);
  }
}

TEST_CASE("a profile of other devices is refused if a key names it, and reported if not") {
  Folder folder;
  const auto job = write_job(folder, "kind = \"mlp\"\nlayers = 2\nwidth = 64\n");
  const std::string about = job + " --strategy ddp --nproc 2";
  const auto own = folder / "cache/perigee/profile.sqlite", other = folder / "other.json";
  REQUIRE(run("profile " + about + " --seconds 20", own_cache(folder)).status == 0);
  // The same times under the name of another device.
  REQUIRE(run("profile --export " + (folder / "own.json"), own_cache(folder)).status == 0);
  auto times = json::parse(read(folder / "own.json"));
  for (auto& entry : times["entries"]) {
    auto device = entry["device"].get<std::string>();
    entry["device"] = "cpu ELSEWHERE" + device.substr(device.find(" threads="));
  }
  folder.write("other.json", times.dump());

  SECTION("an import without entries for this machine") {
    const auto refused = run("profile --import " + other, own_cache(folder));
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err, Catch::Contains("other.json must have entries of a device of this "
                                            "machine (cpu "));
    CHECK_THAT(refused.err, Catch::Contains("but has those of cpu ELSEWHERE threads="));
    CHECK_THAT(refused.err, Catch::Contains("measure this one by `perigee profile JOB`"));
    // A file with entries for this machine is imported whole.
    const auto both = json::parse(read(folder / "own.json"));
    for (const auto& entry : both["entries"]) times["entries"].push_back(entry);
    folder.write("both.json", times.dump());
    CHECK(run("profile --import " + (folder / "both.json"), own_cache(folder)).status == 0);
    const auto plain = run("simulate " + about, own_cache(folder));
    CHECK(plain.status == 0);
    CHECK_THAT(plain.err, !Catch::Contains("ELSEWHERE"));
  }
  SECTION("a profile that a key names") {
    // Another number of threads is another device.
    const std::string threads = " --set cluster.threads=2";
    const std::string key = " --set cluster.profile=" + own;
    for (const std::string command : {"plan ", "simulate ", "train "}) {
      INFO(command);
      const auto to = command == "train " ? " --set train.output=" + (folder / "run") +
                                                " --set train.steps=1 --overwrite"
                                          : std::string();
      const auto refused = run(command + about + key + threads + to, own_cache(folder));
      CHECK(refused.status == 2);
      CHECK_THAT(refused.err, Catch::Contains("must have times of this job's device, cpu "));
      CHECK_THAT(refused.err, Catch::Contains(" threads=2 ") && Catch::Contains(" threads=1 "));
      CHECK_THAT(refused.err, Catch::Contains("by `perigee profile JOB`, or leave the key out"));
      const auto told = run(command + about + threads + to, own_cache(folder));
      CHECK(told.status == 0);
      const std::string line = "times are estimates: the profile ";
      const auto at = told.err.find(line);
      REQUIRE(at != told.err.npos);
      CHECK(told.err.find(line, at + 1) == told.err.npos);
      CHECK(run(command + about + key + to, own_cache(folder)).err.find("estimates") ==
            std::string::npos);
    }
    const auto described = run("plan " + about + key + " --cluster 8xh100", own_cache(folder));
    CHECK(described.status == 0);
    CHECK_THAT(described.err, Catch::Contains("times are estimated for "));
    CHECK_THAT(described.err, Catch::Contains("has times of cpu "));
    // The missing times can be measured.
    REQUIRE(run("profile " + about + key + threads + " --seconds 20", own_cache(folder)).status ==
            0);
    CHECK(run("simulate " + about + key + threads, own_cache(folder)).status == 0);
  }
}

namespace {

json carried_out(const std::string& text) {
  auto plan = json::parse(text);
  plan.erase("decisions");
  plan.erase("prediction");
  return plan;
}

// Divides the times in a value of a profile by 1,000.
void shorten(json& value) {
  for (const std::string key : {"seconds", "latency", "per_byte"}) {
    if (value.contains(key)) value[key] = 1e-3 * value[key].get<double>();
  }
  if (value.contains("points")) {
    for (auto& point : value["points"]) shorten(point);
  }
}

// Returns auto's plan where the profile has the ops of that plan and few others.
std::string measured_plan(const Folder& folder, const std::string& job) {
  std::string plan;
  for (int round = 0; round < 5; ++round) {
    const auto next = run("plan " + job + " --nproc 2", own_cache(folder));
    INFO(next.err);
    REQUIRE(next.status == 0);
    const bool stands = !plan.empty() && carried_out(next.out) == carried_out(plan);
    plan = next.out;
    if (stands) break;
    const auto about = job + " --nproc 2 --plan " + folder.write("plan.json", plan);
    REQUIRE(run("profile " + about + " --seconds 20", own_cache(folder)).status == 0);
  }
  return plan;
}

}  // namespace

TEST_CASE("a changed time of a kernel in the profile changes the plan") {
  Folder folder;
  const auto job = write_job(folder, "kind = \"mlp\"\nlayers = 4\nwidth = 256\n");
  const auto planned = [&] { return carried_out(measured_plan(folder, job)); };
  const auto before = planned();
  const auto file = folder / "profile.json";
  REQUIRE(run("profile --export " + file, own_cache(folder)).status == 0);
  auto profile = json::parse(read(file));
  int changed = 0;
  for (auto& entry : profile["entries"]) {
    if (entry["kind"] != "time" ||
        entry["content"].get<std::string>().find("aten::mm") == std::string::npos) {
      continue;
    }
    entry["value"]["seconds"] = 1e4 * entry["value"]["seconds"].get<double>();
    ++changed;
  }
  REQUIRE(changed > 0);
  folder.write("profile.json", profile.dump());
  REQUIRE(run("profile --import " + file, own_cache(folder)).status == 0);
  CHECK(planned() != before);
}

TEST_CASE("profiling auto's plan measures possibly faster plans until the choice is stable") {
  Folder folder;
  const auto file = write_job(folder, "kind = \"mlp\"\nlayers = 2\nwidth = 64\n");
  const auto job = file + " --nproc 2";
  const auto nothing = run("profile " + job + " --seconds 1e-3", own_cache(folder));
  REQUIRE(nothing.status == 0);
  CHECK_THAT(nothing.out, Catch::Contains(": 0 measured, 0 known before"));
  CHECK_THAT(nothing.out, Catch::Contains("another plan may be faster: the budget of 0.001 s "));

  // Simulates estimates that were far too long for the measured plan's ops.
  measured_plan(folder, file);
  REQUIRE(run("profile --export " + (folder / "profile.json"), own_cache(folder)).status == 0);
  auto profile = json::parse(read(folder / "profile.json"));
  for (auto& entry : profile["entries"]) {
    if (entry["kind"] != "trace") shorten(entry["value"]);
  }
  folder.write("profile.json", profile.dump());
  REQUIRE(run("profile --import " + (folder / "profile.json"), own_cache(folder)).status == 0);

  const auto first = run("profile " + job + " --seconds 40", own_cache(folder));
  INFO(first.out << first.err);
  REQUIRE(first.status == 0);
  CHECK_THAT(first.out, Catch::Contains(" plans were measured\n"));
  CHECK_THAT(first.out, !Catch::Contains("another plan may be faster"));
  // The plan was measured, and remains chosen.
  const auto plan = run("plan " + job, own_cache(folder));
  const auto said = json::parse(plan.out)["decisions"].dump();
  CHECK_THAT(said, Catch::Contains("measured"));
  const std::string takes = "auto takes ";
  const auto at = first.out.find(takes);
  REQUIRE(at != first.out.npos);
  const auto begin = at + takes.size();
  const auto choice = first.out.substr(begin, first.out.find('\n', begin) - begin);
  CHECK_THAT(said, Catch::Contains("the best is " + choice + ": "));
  const auto second = run("profile " + job + " --seconds 40", own_cache(folder));
  CHECK_THAT(second.out, Catch::Contains(": 0 measured, ") && Catch::Contains(takes + choice));
}

TEST_CASE("matrix products take the way that the profile says is faster, and plans state it") {
  Folder folder;
  const auto job = write_job(folder, "kind = \"mlp\"\nlayers = 3\nwidth = 96\n") +
                   " --set strategy=ddp";
  const auto profiled = run("profile " + job + " --seconds 20", own_cache(folder));
  REQUIRE(profiled.status == 0);
  const std::string said = " kinds of matrix products were measured in two ways\n";
  if (profiled.out.find(said) == profiled.out.npos) {
    WARN("this CPU has one way to multiply matrices");
    return;
  }
  CHECK_THAT(run("profile " + job + " --seconds 20", own_cache(folder)).out,
             Catch::Contains(": 0 measured, ") && !Catch::Contains(said));
  // Returns the plan where the other ways take so many seconds.
  const auto planned = [&](double seconds) {
    REQUIRE(run("profile --export " + (folder / "own.json"), own_cache(folder)).status == 0);
    auto profile = json::parse(read(folder / "own.json"));
    int changed = 0;
    for (auto& entry : profile["entries"]) {
      const bool other = entry["content"].get<std::string>().find("way=") != std::string::npos;
      if (entry["kind"] != "time" || !other) continue;
      entry["value"]["seconds"] = seconds;
      ++changed;
    }
    REQUIRE(changed > 2);
    folder.write("changed.json", profile.dump());
    REQUIRE(run("profile --import " + (folder / "changed.json"), own_cache(folder)).status == 0);
    const auto plan = run("plan " + job, own_cache(folder));
    REQUIRE(plan.status == 0);
    return json::parse(plan.out);
  };
  // Returns the plan of a run.
  const auto trained = [&](const std::string& more) {
    const auto to = " --set train.steps=3 --overwrite --set train.output=" + (folder / "run");
    REQUIRE(run("train " + job + to + more, own_cache(folder)).status == 0);
    return json::parse(read(folder / "run/plan.json"));
  };
  const auto usual = planned(1e3);
  CHECK(!usual.contains("products"));
  CHECK(!trained("").contains("products"));
  const auto other = planned(1e-9);
  REQUIRE(other["products"].size() > 2);
  CHECK_THAT(other["decisions"].dump(), Catch::Contains("computed in their other way"));
  CHECK(trained("")["products"] == other["products"]);
  // A given plan stays as it is.
  CHECK(!trained(" --plan " + folder.write("usual.json", usual.dump())).contains("products"));
  for (const auto* name : {"float32 [64, 8] x [9, 32]", "float32 [64, 8] x [8, 32] + [8]"}) {
    auto wrong = other;
    wrong["products"] = {{name, "library"}};
    const auto refused = run("train " + job + " --plan " + folder.write("wrong.json", wrong.dump()),
                             own_cache(folder));
    CHECK(refused.status == 2);
    CHECK_THAT(refused.err,
               Catch::Contains("products has entries like \"float32 [64, 8] x [8, 32]\""));
  }
}
