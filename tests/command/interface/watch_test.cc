// perigee watch: a local page that follows runs.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;
using nlohmann::json;

namespace {

struct Answer {
  int status = 0;
  std::string head, body;
};

// Sends one request over a connection of its own.
Answer ask(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  const auto request = "GET " + path + " HTTP/1.1\r\nHost: " + host + ":" + std::to_string(port) +
                       "\r\nConnection: close\r\n\r\n";
  REQUIRE(write(fd, request.data(), request.size()) == std::ssize(request));
  std::string text, piece(1 << 16, '\0');
  for (ssize_t count; (count = read(fd, piece.data(), piece.size())) > 0;) {
    text.append(piece, 0, static_cast<size_t>(count));
  }
  close(fd);
  const auto end = text.find("\r\n\r\n");
  REQUIRE(end != std::string::npos);
  return {std::stoi(text.substr(text.find(' '))), text.substr(0, end), text.substr(end + 4)};
}

// Two runs, of which `a` goes on.
struct Runs {
  Folder folder;
  std::string metrics;

  Runs() {
    for (const std::string name : {"a", "b"}) {
      std::filesystem::create_directories(folder / ("runs/" + name));
      folder.write("runs/" + name + "/job.toml", "[train]\nsteps = 10\n[optimizer]\nlr = " +
                                                     std::string(name == "a" ? "0.1" : "0.2") +
                                                     "\n");
      folder.write("runs/" + name + "/log.txt", "a line of <b>" + name + "</b>\n");
    }
    metrics = folder.write("runs/a/metrics.jsonl", "");
    folder.write("runs/a/memory.json",
                 "{\"kinds\":[\"parameters\",\"gradients\"],\"ranks\":[[700,300],[700,0]]}\n");
    folder.write(
        "runs/a/trace.json",
        "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"aten::mm\",\"pid\":0,\"tid\":0,\"ts\":0,"
        "\"dur\":3000},{\"ph\":\"X\",\"name\":\"all_reduce\",\"pid\":0,\"tid\":1,\"ts\":3000,"
        "\"dur\":1000}]}\n");
    folder.write("runs/b/trace.json", "{\"traceEvents\":[");  // cut short
    folder.write("runs/a/samples.jsonl",
                 "{\"step\":1,\"prompt\":\"It \",\"text\":\"is <b>\"}\nno JSON\n[]\n"
                 "{\"step\":2,\"prompt\":\"It \"");  // being written
    folder.write("runs/b/metrics.jsonl",
                 "{\"step\":1,\"loss\":7,\"step_s\":1,\"peak_bytes\":[3]}\n"
                 "{\"summary\":{\"steps\":1}}\n");
    step(1, 5.5);
  }
  void step(int step, double loss) const {
    std::ofstream(metrics, std::ios::app) << json{{"step", step},
                                                  {"loss", loss},
                                                  {"step_s", 0.5},
                                                  {"mfu", 0.25},
                                                  {"compute_s", {0.4, 0.5}},
                                                  {"wait_s", {0.1, 0}},
                                                  {"peak_bytes", {1 << 20, 2 << 20}}}
                                          << "\n";
  }
  std::string path() const { return folder / "runs"; }
};

// A server that has begun to answer.
struct Watch {
  int port = free_port();
  Process process;

  explicit Watch(const std::string& path)
      : process(perigee_command("watch " + path + " --port " + std::to_string(port))) {
    process.wait_for("http://127.0.0.1:" + std::to_string(port));
  }
};

json run_named(const json& runs, const std::string& name) {
  for (const auto& run : runs) {
    if (run["name"] == name) return run;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("watch lists runs, follows their steps and shows charts, details and differences") {
  const Runs runs;
  const Watch watch(runs.path());
  const auto get = [&](const std::string& path) {
    const auto answer = ask(watch.port, path);
    INFO(path << "\n" << answer.body);
    CHECK(answer.status == 200);
    return answer.body;
  };
  auto a = run_named(json::parse(get("/api/runs")), "a");
  CHECK(a["steps"] == 1);
  CHECK(a["of"] == 10);
  CHECK(a["state"] == "running");
  CHECK(run_named(json::parse(get("/api/runs")), "b")["state"] == "finished");
  runs.step(2, 4.5);
  for (const double end = now() + 20; a["steps"] != 2 && now() < end;) {
    a = run_named(json::parse(get("/api/runs")), "a");
  }
  CHECK(a["loss"] == 4.5);
  CHECK(a["mfu"] == 0.25);
  CHECK_THAT(get("/api/charts.svg?run=a&run=b&chart=loss&x=seconds&log=1"),
             Catch::StartsWith("<svg ") && Contains(">a<") && Contains(">seconds<"));
  const auto details = json::parse(get("/api/run?name=a"));
  CHECK(details["memory"] == json{1 << 20, 2 << 20});
  CHECK(details["memory_kinds"]["ranks"] == json{{700, 300}, {700, 0}});
  CHECK(details["compute_s"] == json{0.4, 0.5});
  CHECK(details["wait_s"] == json{0.1, 0});
  CHECK(details["samples"] == json{{{"step", 1}, {"prompt", "It "}, {"text", "is <b>"}}});
  CHECK(details["trace"]["seconds"].get<double>() == Approx(4e-3));
  CHECK(details["trace"]["ranks"][0]["exposed"].get<double>() == Approx(1e-3));
  const auto b = json::parse(get("/api/run?name=b"));
  CHECK(b["memory_kinds"].is_null());
  CHECK(b["samples"] == json::array());
  CHECK_THAT(b["trace"]["error"].get<std::string>(), Contains("[trace]"));
  // A trace that is written anew is read anew.
  runs.folder.write("runs/a/trace.json",
                    "{\"traceEvents\":[{\"ph\":\"X\",\"name\":\"aten::mm\",\"pid\":0,\"tid\":0,"
                    "\"ts\":0,\"dur\":7000}]}\n");
  CHECK(json::parse(get("/api/run?name=a"))["trace"]["seconds"].get<double>() == Approx(7e-3));
  CHECK(details["log"] == "a line of <b>a</b>\n");
  const auto differences = json::parse(get("/api/differences?a=a&b=b"))["job"];
  CHECK(differences == json{{{"key", "optimizer.lr"}, {"a", "0.1"}, {"b", "0.2"}}});
  CHECK_THAT(get("/"), Contains("<title>Perigee runs</title>"));
}

TEST_CASE("watch answers this host only, and only for the runs of its list") {
  const Runs runs;
  Watch watch(runs.path());
  CHECK(ask(watch.port, "/api/runs", "localhost").status == 200);
  CHECK(ask(watch.port, "/api/runs", "evil.example").status == 403);  // DNS rebinding
  CHECK(ask(watch.port, "/../../../etc/passwd").status == 404);
  const auto unknown = ask(watch.port, "/api/run?name=../b");
  CHECK(unknown.status == 400);
  CHECK_THAT(unknown.body, Contains("there is no \"../b\""));
  CHECK_THAT(ask(watch.port, "/api/charts.svg?run=a&chart=los").body,
             Contains("did you mean \"loss\"?"));
  watch.process.signal(SIGTERM);
  CHECK(watch.process.wait().status == 0);
}

TEST_CASE("watch ends by a signal that came before it answers") {
  const Runs runs;
  // The command inherits the mask: the signal waits until the command takes it.
  sigset_t term, before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  Process watch(perigee_command("watch " + runs.path() + " --port 0"), {.seconds = 10});
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  watch.signal(SIGTERM);
  CHECK(watch.wait().status == 0);
}

TEST_CASE("watch says which port is in use, and which folder is none") {
  const Runs runs;
  const Watch watch(runs.path());
  const auto second = run("watch " + runs.path() + " --port " + std::to_string(watch.port));
  CHECK(second.status == 2);
  CHECK(is_short(second.err));
  CHECK_THAT(second.err, Contains("port " + std::to_string(watch.port)) &&
                             Contains("choose another by --port"));
  const auto none = run("watch " + (runs.folder / "none"));
  CHECK(none.status == 2);
  CHECK_THAT(none.err, Contains("is not there"));
}

TEST_CASE("a watch that is killed while a job trains leaves its losses and weights bit-equal") {
  const TrainingJob watched, alone;
  constexpr int kSteps = 1500;  // they take some seconds
  const auto steps = "--nproc 1 --set train.log_every=1 --set train.steps=" +
                     std::to_string(kSteps);
  alone.good("train", steps);
  std::filesystem::create_directories(watched.output());
  {
    const Watch watch(watched.output());
    Process train(watched.words("train", steps), watched.how());
    train.wait_for("step 2/");
    json steps_seen = 0;  // watch looks at its folders every half second
    for (const double end = now() + 20; steps_seen == 0 && now() < end;) {
      const auto seen = run_named(json::parse(ask(watch.port, "/api/runs").body), "run");
      if (!seen.is_null()) steps_seen = seen["steps"];
    }
    CHECK(steps_seen >= 1);
    CHECK(ask(watch.port, "/api/run?name=run").status == 200);
    watch.process.signal(SIGKILL);
    const auto killed_at = watched.losses().size();
    CHECK(train.wait().status == 0);
    CHECK(killed_at < kSteps);  // the job went on for some steps
  }
  CHECK(watched.losses() == alone.losses());
  CHECK(watched.losses().size() == kSteps);
  CHECK(watched.weights() == alone.weights());
}

TEST_CASE("watch shows the differences of two plans and the report of each") {
  const TrainingJob job;
  const auto train = [&](const std::string& name, int ranks) {
    job.good("train",
             "--strategy ddp --nproc " + std::to_string(ranks) +
                 " --set train.steps=1 --set train.output=" + (job.folder() / ("runs/" + name)));
  };
  train("one", 1);
  train("two", 2);
  const Watch watch(job.folder() / "runs");
  const auto plans = json::parse(ask(watch.port, "/api/differences?a=one&b=two").body)["plan"];
  CHECK_THAT(plans.get<std::string>(),
             Contains("one") && Contains("two") && Contains("mesh") && Contains("data"));
  CHECK(json::parse(ask(watch.port, "/api/differences?a=two&b=two").body)["plan"] != plans);
  const auto details = json::parse(ask(watch.port, "/api/run?name=two").body);
  CHECK(details["report"].is_number_integer());
  const auto report = ask(watch.port, "/api/report?name=two");
  CHECK(report.status == 200);
  CHECK(report.body == read(job.folder() / "runs/two/plan.html"));
  CHECK_THAT(report.body, Contains("@media (prefers-color-scheme: dark)") &&
                              Contains("<h2>Costs by op</h2>") &&
                              Contains("<h2>Time line of a step</h2>") &&
                              Contains("<h2>Memory of a rank by kind</h2>"));
  CHECK_THAT(report.head, Contains("Content-Security-Policy: sandbox; default-src 'none'"));
}

TEST_CASE("watch and plot refuse a run in another format, and watch goes on with others") {
  const Runs runs;
  runs.folder.write("runs/b/memory.json", "{\"format\":\"perigee.run/2\",\"kinds\":[]}\n");
  std::filesystem::create_directories(runs.folder / "runs/c/metrics.jsonl");
  runs.folder.write("runs/job.toml", "# of the user, beside the runs\n");
  const Watch watch(runs.path());
  const auto list = json::parse(ask(watch.port, "/api/runs").body);
  CHECK(run_named(list, "c")["state"] == "unreadable");
  CHECK(run_named(list, "a")["problem"].is_null());
  CHECK(run_named(list, "a")["loss"] == 5.5);
  const auto b = run_named(list, "b");
  CHECK(b["state"] == "unreadable");
  CHECK(b["loss"].is_null());
  const std::string message =
      "must be a run in the format perigee.run/1, but its memory.json states "
      "\"perigee.run/2\"";
  CHECK_THAT(b["problem"].get<std::string>(), Contains(message));
  for (const std::string path : {"/api/run?name=b", "/api/charts.svg?run=a&run=b",
                                 "/api/differences?a=a&b=b", "/api/report?name=b"}) {
    INFO(path);
    const auto refused = ask(watch.port, path);
    CHECK(refused.status == 400);
    CHECK_THAT(refused.body, Contains(message));
  }
  CHECK(ask(watch.port, "/api/run?name=a").status == 200);
}

TEST_CASE("watch counts the damaged lines of a run's metrics") {
  const Runs runs;
  std::ofstream(runs.metrics, std::ios::app) << "{\"step\":2,\"lo\n[]\n";
  runs.step(3, 3.5);
  const Watch watch(runs.path());
  const auto list = json::parse(ask(watch.port, "/api/runs").body);
  CHECK(run_named(list, "a")["damaged"] == 2);
  CHECK(run_named(list, "a")["loss"] == 3.5);
  CHECK(run_named(list, "b")["damaged"] == 0);
}

TEST_CASE("a browser shows the page with its runs and charts") {
  Process which({"/bin/sh", "-c", "command -v chromium-headless-shell"});
  auto browser = which.wait().out;
  if (browser.empty()) {
    WARN("there is no chromium-headless-shell: the page was not loaded by a browser");
    return;
  }
  browser.pop_back();
  const Runs runs;
  std::ofstream(runs.metrics, std::ios::app) << "no JSON\n[]\n";
  runs.folder.write("runs/a/plan.html", "<!DOCTYPE html><p>A page</p>");
  std::filesystem::create_directories(runs.folder / "runs/c");
  runs.folder.write("runs/c/metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  runs.folder.write("runs/c/memory.json", "{\"format\":\"perigee.run/2\"}\n");
  const Watch watch(runs.path());
  const Folder folder;
  const auto shown = [&](const std::string& query) {
    Process process({browser, "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                     "--user-data-dir=" + (folder / "browser"), "--window-size=1280,1000",
                     "--virtual-time-budget=10000", "--dump-dom",
                     "http://127.0.0.1:" + std::to_string(watch.port) + "/" + query});
    return process.wait().out;
  };
  const auto page = shown("");
  INFO(page);
  CHECK_THAT(page, Contains("step 1 of 10 · loss 5.5"));
  CHECK_THAT(page, Contains("<path class=\"line\"") && Contains("2 damaged lines of") &&
                       Contains("states \"perigee.run/2\""));
  CHECK_THAT(page, Contains("This run has no plan yet.") && Contains("<iframe class=\"report\"") &&
                       Contains("src=\"/api/report?name=a&amp;version="));
  CHECK_THAT(page, Contains("<div id=\"problem\" role=\"status\"></div>"));
  CHECK_THAT(page, Contains("MFU 25%") && Contains("data-theme=\"system\""));
  const auto time = shown("?theme=dark#time");
  CHECK_THAT(time, Contains("data-theme=\"dark\"") && Contains("3 ms, 75%") &&
                       Contains("1 ms, 25%") && Contains(">communication<") &&
                       Contains("<td>400 ms</td>"));
  CHECK_THAT(shown("?run=a&run=b#differences"),
             Contains("<td>optimizer.lr</td><td>0.1</td><td>0.2</td>"));
  CHECK_THAT(shown("#memory"), Contains("title=\"parameters: ") && Contains(">gradients<") &&
                                   Contains("<td>2 MiB</td>"));
}
