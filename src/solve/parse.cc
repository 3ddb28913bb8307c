// JSON to problem. One `Reader` per object: it names the path of every error and refuses
// unknown keys.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/text/depth.h"
#include "solve/problem.h"

namespace perigee::solve {
namespace {

using Json = nlohmann::json;

constexpr double kForbiddenTime = std::numeric_limits<double>::infinity();

std::string shown(const Json& value) {
  auto text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 40 ? text.substr(0, 37) + "..." : text;
}

double number_at(const Json& value, const std::string& path) {
  if (!value.is_number()) fail("solve", "{} must be a number, but got {}", path, shown(value));
  const double number = value.get<double>();
  if (!std::isfinite(number) || number < 0) {
    fail("solve", "{} must be a finite number >= 0, but got {}", path, shown(value));
  }
  return number == 0 ? 0 : number;
}

int64_t integer_at(const Json& value, const std::string& path, int64_t least, int64_t most) {
  int64_t number = 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    number = INT64_MAX;
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>() &&
             std::abs(value.get<double>()) < 1e15) {
    number = static_cast<int64_t>(value.get<double>());
  } else {
    fail("solve", "{} must be an integer, but got {}", path, shown(value));
  }
  if (number < least || number > most) {
    if (number < least && most >= INT32_MAX)
      fail("solve", "{} must be >= {}, but got {}", path, least, shown(value));
    fail("solve", "{} must be between {} and {}, but got {}", path, least, most, shown(value));
  }
  return number;
}

class Reader {
 public:
  Reader(const Json& object, std::string path, std::vector<std::string> keys)
      : object_(object), path_(std::move(path)) {
    if (!object.is_object()) {
      fail("solve", "{} must be an object, but got {}", path_.empty() ? "a problem" : path_,
           shown(object));
    }
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail("solve", "{}: unknown key \"{}\"{}", path_.empty() ? "problem" : path_, key,
             did_you_mean(key, keys));
      }
    }
  }

  std::string path(const char* key) const {
    return path_.empty() ? std::string(key) : path_ + "." + key;
  }
  bool has(const char* key) const { return object_.contains(key); }
  double number(const char* key) const { return has(key) ? number_at(object_[key], path(key)) : 0; }
  int64_t integer(const char* key, int64_t least, int64_t most = INT32_MAX) const {
    return integer_at(required(key), path(key), least, most);
  }
  std::string string(const char* key) const {
    const auto& value = required(key);
    if (!value.is_string())
      fail("solve", "{} must be a string, but got {}", path(key), shown(value));
    return value.get<std::string>();
  }
  bool boolean(const char* key) const {
    const auto& value = required(key);
    if (!value.is_boolean()) {
      fail("solve", "{} must be true or false, but got {}", path(key), shown(value));
    }
    return value.get<bool>();
  }
  const Json& array(const char* key) const {
    const auto& value = required(key);
    if (!value.is_array())
      fail("solve", "{} must be an array, but got {}", path(key), shown(value));
    return value;
  }

 private:
  const Json& required(const char* key) const {
    if (!has(key)) fail("solve", "{} is missing", path(key));
    return object_[key];
  }
  const Json& object_;
  std::string path_;
};

const Json& array_at(const Json& value, const std::string& path) {
  if (!value.is_array()) fail("solve", "{} must be an array, but got {}", path, shown(value));
  return value;
}

AssignOp parse_op(const Json& json, const std::string& path, int index) {
  const Reader reader(json, path, {"name", "options", "follows", "group", "group_input"});
  AssignOp op;
  op.name = reader.has("name") ? reader.string("name") : "";
  if (reader.has("follows")) {
    if (index == 0)
      fail("solve", "{}.follows must name an earlier op, but this is the first", path);
    op.follows = static_cast<int>(reader.integer("follows", 0, index - 1));
  }
  if (reader.has("group")) {
    op.group = reader.string("group");
    if (op.group.empty()) fail("solve", "{}.group must not be empty, but got \"\"", path);
  }
  if (reader.has("group_input")) op.group_input = reader.boolean("group_input");
  const auto& options = reader.array("options");
  for (size_t j = 0; j < options.size(); ++j) {
    const Reader option(options[j], fmt::format("{}.options[{}]", path, j),
                        {"time", "resident", "saved", "optimizer", "transient", "input", "live"});
    op.options.push_back({.time = option.number("time"),
                          .resident = option.number("resident"),
                          .saved = option.number("saved"),
                          .optimizer = option.number("optimizer"),
                          .transient = option.number("transient"),
                          .input = option.number("input"),
                          .live = option.number("live")});
  }
  return op;
}

AssignEdge parse_edge(const Json& json, const std::string& path, const std::vector<AssignOp>& ops) {
  const Reader reader(json, path, {"from", "to", "time"});
  AssignEdge edge;
  const auto last = static_cast<int64_t>(ops.size()) - 1;
  if (last < 0) fail("solve", "{} joins two ops, but there are none", path);
  edge.from = static_cast<int>(reader.integer("from", 0, last));
  edge.to = static_cast<int>(reader.integer("to", 0, last));
  const auto& rows = reader.array("time");
  const size_t height = ops[edge.from].options.size(), width = ops[edge.to].options.size();
  if (rows.size() != height) {
    fail("solve", "{}.time must have {} rows (options of ops[{}]), but got {}", path, height,
         edge.from, rows.size());
  }
  edge.time.reserve(height * width);
  for (size_t i = 0; i < height; ++i) {
    const auto row_path = fmt::format("{}.time[{}]", path, i);
    const auto& row = array_at(rows[i], row_path);
    if (row.size() != width) {
      fail("solve", "{} must have {} values (options of ops[{}]), but got {}", row_path, width,
           edge.to, row.size());
    }
    for (size_t j = 0; j < width; ++j) {
      const auto& value = row[j];
      if (value.is_null()) {
        edge.time.push_back(kForbiddenTime);
      } else if (value.is_number() && value.get<double>() >= 0 &&
                 value.get<double>() < kForbiddenTime) {
        edge.time.push_back(value.get<double>());
      } else {
        edge.time.push_back(number_at(value, fmt::format("{}[{}]", row_path, j)));
      }
    }
  }
  return edge;
}

AssignProblem parse_assign(const Json& json) {
  const Reader reader(
      json, "", {"format", "kind", "memory_limit", "transient_count", "ops", "edges", "moments"});
  AssignProblem problem;
  if (reader.has("memory_limit")) problem.memory_limit = reader.number("memory_limit");
  if (reader.has("transient_count")) {
    problem.transient_count = static_cast<int>(reader.integer("transient_count", 0));
  }
  const auto& ops = reader.array("ops");
  for (size_t i = 0; i < ops.size(); ++i) {
    problem.ops.push_back(parse_op(ops[i], fmt::format("ops[{}]", i), static_cast<int>(i)));
  }
  if (reader.has("edges")) {
    const auto& edges = reader.array("edges");
    for (size_t e = 0; e < edges.size(); ++e) {
      problem.edges.push_back(parse_edge(edges[e], fmt::format("edges[{}]", e), problem.ops));
    }
  }
  if (reader.has("moments")) {
    const auto& moments = reader.array("moments");
    for (size_t m = 0; m < moments.size(); ++m) {
      const auto path = fmt::format("moments[{}]", m);
      auto& moment = problem.moments.emplace_back();
      for (size_t i = 0; i < array_at(moments[m], path).size(); ++i) {
        moment.push_back(static_cast<int>(integer_at(moments[m][i], fmt::format("{}[{}]", path, i),
                                                     0, static_cast<int64_t>(ops.size()) - 1)));
      }
    }
  }
  return problem;
}

StagesProblem parse_stages(const Json& json) {
  const Reader reader(
      json, "", {"format", "kind", "layers", "devices", "microbatches", "submeshes", "candidates"});
  StagesProblem problem;
  problem.layers = static_cast<int>(reader.integer("layers", 1));
  problem.devices = reader.integer("devices", 1);
  problem.microbatches = reader.integer("microbatches", 1);
  const auto& submeshes = reader.array("submeshes");
  for (size_t i = 0; i < submeshes.size(); ++i) {
    const auto path = fmt::format("submeshes[{}]", i);
    if (array_at(submeshes[i], path).size() != 2) {
      fail("solve", "{} must be [hosts, devices per host], but got {}", path, shown(submeshes[i]));
    }
    problem.submeshes.push_back(
        {.hosts = integer_at(submeshes[i][0], path + "[0]", 1, INT32_MAX),
         .devices_per_host = integer_at(submeshes[i][1], path + "[1]", 1, INT32_MAX)});
  }
  const auto& candidates = reader.array("candidates");
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Reader each(candidates[i], fmt::format("candidates[{}]", i),
                      {"first", "last", "submesh", "time", "max_successors"});
    StageCandidate candidate;
    candidate.first = static_cast<int>(each.integer("first", 0, problem.layers - 1));
    candidate.last = static_cast<int>(each.integer("last", candidate.first, problem.layers - 1));
    candidate.submesh = static_cast<int>(
        each.integer("submesh", 0, static_cast<int64_t>(submeshes.size()) - 1));
    candidate.time = each.number("time");
    if (each.has("max_successors"))
      candidate.max_successors = each.integer("max_successors", 0, INT64_MAX);
    problem.candidates.push_back(candidate);
  }
  return problem;
}

}  // namespace

Problem parse_problem(std::string_view text) {
  check_json_depth(text, "solve", "a problem");
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    std::string what = error.what();
    if (const auto end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    fail("solve", "a problem must be JSON: {}", what);
  }
  if (!json.is_object()) fail("solve", "a problem must be an object, but got {}", shown(json));
  auto text_of = [&](const char* key) {
    if (!json.contains(key)) fail("solve", "{} is missing", key);
    if (!json[key].is_string())
      fail("solve", "{} must be a string, but got {}", key, shown(json[key]));
    return json[key].get<std::string>();
  };
  const auto format = text_of("format");
  if (format != "perigee.problem/1") {
    fail("solve", "format must be \"perigee.problem/1\", but got \"{}\"", format);
  }
  const auto kind = text_of("kind");
  const std::vector<std::string> kinds = {"assign", "stages"};
  Problem problem;
  if (kind == "assign") {
    problem = parse_assign(json);
  } else if (kind == "stages") {
    problem = parse_stages(json);
  } else {
    fail("solve", "kind must be \"assign\" or \"stages\", but got \"{}\"{}", kind,
         did_you_mean(kind, kinds));
  }
  check_problem(problem);
  return problem;
}

}  // namespace perigee::solve
