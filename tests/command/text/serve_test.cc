// perigee serve: a model behind OpenAI's API.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/command/text/chat_job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

// A connection to a server of this host.
class Client {
 public:
  explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  ~Client() { close(socket_); }
  Client(const Client&) = delete;

  void send(const std::string& text) const {
    REQUIRE(write(socket_, text.data(), text.size()) == std::ssize(text));
  }
  void post(const std::string& path, const json& body) const {
    const auto text = body.dump();
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         "Connection: close\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  }
  // Reads until the text came, or the connection's end.
  std::string read_until(const std::string& text) const {
    std::string found, piece(1 << 14, '\0');
    while (text.empty() || found.find(text) == std::string::npos) {
      const auto count = read(socket_, piece.data(), piece.size());
      if (count <= 0) break;
      found.append(piece, 0, static_cast<size_t>(count));
    }
    return found;
  }
  std::string read_all() const { return read_until(""); }

 private:
  int socket_;
};

// The status of a short completion.
int ask(int port) {
  const Client client(port);
  client.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 1}});
  const auto answer = client.read_all();
  return std::stoi(answer.substr(answer.find(' ')));
}

// A server that has begun to answer.
struct Server {
  int port = free_port();
  Process process;

  explicit Server(const ChatJob& job, const std::string& options = "")
      : process(perigee_command("serve " + job.file() + " --port " + std::to_string(port) + " " +
                                options)) {
    process.wait_for("http://127.0.0.1:" + std::to_string(port) + "/v1");
  }
};

}  // namespace

TEST_CASE("the client of OpenAI talks to a server, whose texts are those of chat and sample") {
  const ChatJob job;
  const auto secret = job.folder().write("token.txt", "s3cret\n");
  Server server(job, "--name tiny --token-file " + secret);
  const auto packages = std::filesystem::path(std::getenv("PERIGEE_BUILD")) / "openai_packages";
  Process process({"python3", "tests/command/text/ask_openai.py", packages.string(),
                   "http://127.0.0.1:" + std::to_string(server.port) + "/v1", "s3cret"},
                  {.seconds = 300});
  const auto asked = process.wait();
  INFO(asked.out << asked.err);
  if (asked.status == 77) {
    WARN("the package openai could not be fetched: its client was not tried");
    return;
  }
  REQUIRE(asked.status == 0);
  const auto found = json::parse(asked.out);
  CHECK(found["model"] == "tiny");
  const auto chatted = job.chat("abc\\n", "");
  CHECK(found["chat"][0].get<std::string>() + "\n" == chatted.out);
  CHECK(found["chat"][1] == "stop");
  CHECK(found["stream"] == found["chat"]);
  CHECK(found["pieces"].get<size_t>() == found["chat"][0].get<std::string>().size() + 3);
  CHECK(found["completions"] == found["in_a_row"]);
  CHECK(found["parallel"] == found["parallel_in_a_row"]);
  CHECK(found["parallel"] != found["completions"]);
  CHECK(found["streamed_completion"] == found["completions"][0]);
  const auto sampled = run(
      {"sample", job.file(), "--prompt", "abc", "--tokens", "6", "--temperature", "0"});
  CHECK_THAT(sampled.out, Catch::StartsWith("abc" + found["completions"][0].get<std::string>()));
  CHECK(found["too_long"][0] == "BadRequestError");
  CHECK(found["too_long"][2] == "context_length_exceeded");
  CHECK(found["other_model"][0] == "NotFoundError");
  CHECK(found["other_token"][0] == "AuthenticationError");
  server.process.signal(SIGINT);
  CHECK(server.process.wait().status == 0);
}

TEST_CASE("a client that goes away frees its slot") {
  const ChatJob job;
  // Far more tokens than the test waits for.
  Server server(job, "--slots 1 --queue 0 --context 200000");
  for (const bool streams : {true, false}) {
    INFO(streams);
    {
      const Client client(server.port);
      client.post(
          "/v1/completions",
          {{"prompt", "abc"}, {"max_tokens", 190000}, {"ignore_eos", true}, {"stream", streams}});
      if (streams) {
        REQUIRE_THAT(client.read_until("\"text\""), Contains("200 OK"));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(500));  // it has the slot by then
      CHECK(ask(server.port) == 503);
    }
    const auto gone = now();
    while (ask(server.port) != 200 && now() - gone < 10) {
    }
    CHECK(now() - gone < 3);
  }
}

TEST_CASE("a server ends with its open requests, and survives what is no request") {
  const ChatJob job;
  Server server(job, "--slots 1 --queue 1 --context 200000");
  for (const std::string garbage :
       {"\r\n\r\n", "GET\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    const Client client(server.port);
    client.send(garbage);
  }
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 20; ++i) idle.push_back(std::make_unique<Client>(server.port));
  CHECK(ask(server.port) == 200);
  for (const std::string host : {"example.org", "127.example.org", "127.0.0.1.example.org:80"}) {
    CAPTURE(host);
    const Client foreign(server.port);
    foreign.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    CHECK_THAT(foreign.read_all(), Contains("403") && Contains("answers requests for 127.0.0.1"));
  }

  const Client open(server.port);
  open.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 190000}, {"ignore_eos", true}});
  const Client waits(server.port);
  waits.post("/v1/completions", {{"prompt", "abc"}, {"max_tokens", 190000}, {"ignore_eos", true}});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.process.signal(SIGTERM);
  const auto begun = now();
  CHECK_THAT(open.read_all(), Contains("503") && Contains("the server ends"));
  CHECK_THAT(waits.read_all(), Contains("the server ends"));
  CHECK(server.process.wait().status == 0);
  CHECK(now() - begun < 5);
}

TEST_CASE("a server on two ranks answers as one of a single rank, and ends with them") {
  const ChatJob job;
  const json body = {{"prompt", "abc"}, {"max_tokens", 8}, {"temperature", 0}};
  const auto answer = [&](int port) {
    const Client client(port);
    client.post("/v1/completions", body);
    const auto text = client.read_all();
    INFO(text);
    REQUIRE(text.find("\r\n\r\n") != std::string::npos);
    return json::parse(text.substr(text.find("\r\n\r\n") + 4))["choices"];
  };
  const Server one(job);
  Server two(job, "--nproc 2 --strategy tensor_parallel --set cluster.timeout=2");
  CHECK(answer(two.port) == answer(one.port));
  std::this_thread::sleep_for(std::chrono::seconds(4));  // longer than the ranks' time-out
  CHECK(answer(two.port) == answer(one.port));
  SECTION("by a signal") {
    two.process.signal(SIGTERM);
    CHECK(two.process.wait().status == 0);
  }
  SECTION("when a rank dies") {
    const auto ranks = children(two.process.pid());
    REQUIRE(ranks.size() == 2);
    kill(ranks[1], SIGKILL);
    const auto ran = two.process.wait();
    CHECK(ran.status == 1);
    CHECK_THAT(ran.err, Contains("rank 1"));
  }
}

TEST_CASE("a server that cannot be opened says why") {
  const ChatJob job;
  const auto refused = [&](const std::string& options, const How& how = {}) {
    const auto ran = run("serve " + job.file() + " " + options, how);
    INFO(ran.err);
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    CHECK(is_short(ran.err));
    return ran.err;
  };
  CHECK_THAT(refused("--host 0.0.0.0 --port 0"),
             Contains("a token is needed") && Contains("--token-file, or PERIGEE_TOKEN"));
  CHECK_THAT(refused("--host 203.0.113.9 --port 0", {.environment = {{"PERIGEE_TOKEN", "x"}}}),
             Contains("an interface of this machine"));
  const Server server(job);
  CHECK_THAT(refused("--port " + std::to_string(server.port)), Contains("must be free"));
  const auto empty = job.folder().write("empty.txt", "\n");
  CHECK_THAT(refused("--token-file " + empty), Contains("--token-file") && Contains("is empty"));
  CHECK_THAT(refused("--top-p 0"), Contains("top_p must be above 0"));
  CHECK_THAT(refused("--template missing.jinja"), Contains("missing.jinja"));
}
