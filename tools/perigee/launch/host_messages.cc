#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "membership.h"

namespace perigee::command {
namespace {

using Json = nlohmann::json;

template <class Read>
auto parse(const std::string& text, const Read& read) {
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    fail_run("launch", "hosts must run one version of perigee, but a message is not readable: {}",
             error.what());
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
              {"outcome", static_cast<int>(one.outcome.kind)},
              {"status", one.outcome.status},
              {"cause", one.outcome.cause},
              {"lost_peers", one.outcome.lost_peers}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Registration parse_registration(const std::string& text) {
  return parse(text, [](const Json& json) {
    Registration one;
    json.at("id").get_to(one.id);
    json.at("attempt").get_to(one.attempt);
    json.at("name").get_to(one.name);
    json.at("ranks").get_to(one.ranks);
    json.at("node_rank").get_to(one.node_rank);
    json.at("address").get_to(one.address);
    json.at("port").get_to(one.port);
    json.at("trained").get_to(one.trained);
    json.at("restarts").get_to(one.restarts);
    one.outcome.kind = static_cast<Outcome::Kind>(json.at("outcome").get<int>());
    json.at("status").get_to(one.outcome.status);
    json.at("cause").get_to(one.outcome.cause);
    json.at("lost_peers").get_to(one.outcome.lost_peers);
    return one;
  });
}

std::string print(const Verdict& one) {
  return Json{{"end", one.end},     {"status", one.status},     {"text", one.text},
              {"mine", one.mine},   {"round", one.round},       {"node", one.node},
              {"nodes", one.nodes}, {"host", one.host},         {"port", one.port},
              {"again", one.again}, {"restarts", one.restarts}, {"note", one.note}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Verdict parse_verdict(const std::string& text) {
  return parse(text, [](const Json& json) {
    Verdict one;
    json.at("end").get_to(one.end);
    json.at("status").get_to(one.status);
    json.at("text").get_to(one.text);
    json.at("mine").get_to(one.mine);
    json.at("round").get_to(one.round);
    json.at("node").get_to(one.node);
    json.at("nodes").get_to(one.nodes);
    json.at("host").get_to(one.host);
    json.at("port").get_to(one.port);
    json.at("again").get_to(one.again);
    json.at("restarts").get_to(one.restarts);
    json.at("note").get_to(one.note);
    return one;
  });
}

}  // namespace perigee::command
