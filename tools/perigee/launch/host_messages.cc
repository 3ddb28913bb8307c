#include <cstdint>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/fail.h"
#include "base/text/depth.h"
#include "membership.h"

namespace perigee::command {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse(std::string_view why) {
  fail_run("launch", "hosts must run one version of perigee, but a message is not readable: {}",
           why);
}

// Reads a field. Numbers must be whole, from -1 to `most`.
template <class T>
void read(const Json& json, const char* key, T& to,
          int64_t most = sizeof(T) == 4 ? INT32_MAX : INT64_MAX) {
  const auto& value = json.at(key);
  if (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    const bool fits = value.is_number_unsigned()
                          ? value.get<uint64_t>() <= static_cast<uint64_t>(most)
                          : value.is_number_integer() && value.get<int64_t>() == -1;
    if (!fits) refuse(fmt::format("{} is out of range", key));
  }
  value.get_to(to);
}

template <class Read>
auto parse(const std::string& text, const Read& read) {
  check_json_depth(text, "launch", "a host's message");
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    refuse(error.what());
  }
}

}  // namespace

std::string print(const Registration& one) {
  return Json{{"id", one.id},
              {"attempt", one.attempt},
              {"name", one.name},
              {"ranks", one.ranks},
              {"node_rank", one.node_rank},
              {"address", one.address},
              {"port", one.port},
              {"trained", one.trained},
              {"restarts", one.restarts},
              {"job", one.job},
              {"outcome", static_cast<int>(one.outcome.kind)},
              {"status", one.outcome.status},
              {"cause", one.outcome.cause},
              {"lost_peers", one.outcome.lost_peers}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Registration parse_registration(const std::string& text) {
  return parse(text, [](const Json& json) {
    Registration one;
    read(json, "id", one.id);
    read(json, "attempt", one.attempt);
    read(json, "name", one.name);
    read(json, "ranks", one.ranks);
    read(json, "node_rank", one.node_rank);
    read(json, "address", one.address);
    read(json, "port", one.port, 65535);
    read(json, "trained", one.trained);
    read(json, "restarts", one.restarts);
    read(json, "job", one.job);
    int outcome = 0;
    read(json, "outcome", outcome, static_cast<int>(Outcome::Kind::final));
    if (outcome < 0) refuse("outcome is out of range");
    one.outcome.kind = static_cast<Outcome::Kind>(outcome);
    read(json, "status", one.outcome.status);
    read(json, "cause", one.outcome.cause);
    read(json, "lost_peers", one.outcome.lost_peers);
    return one;
  });
}

std::string print(const Verdict& one) {
  return Json{{"end", one.end},     {"status", one.status},     {"text", one.text},
              {"mine", one.mine},   {"round", one.round},       {"node", one.node},
              {"nodes", one.nodes}, {"host", one.host},         {"port", one.port},
              {"again", one.again}, {"restarts", one.restarts}, {"job", one.job},
              {"note", one.note}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Verdict parse_verdict(const std::string& text) {
  return parse(text, [](const Json& json) {
    Verdict one;
    read(json, "end", one.end);
    read(json, "status", one.status);
    read(json, "text", one.text);
    read(json, "mine", one.mine);
    read(json, "round", one.round);
    read(json, "node", one.node);
    read(json, "nodes", one.nodes);
    read(json, "host", one.host);
    read(json, "port", one.port, 65535);
    read(json, "again", one.again);
    read(json, "restarts", one.restarts);
    read(json, "job", one.job);
    read(json, "note", one.note);
    return one;
  });
}

}  // namespace perigee::command
