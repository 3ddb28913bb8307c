#include "search/space/choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/fail.h"
#include "schedule/schedule.h"
#include "search/space/submeshes.h"

namespace perigee::search {
namespace {

using Json = nlohmann::json;

const std::vector<std::string> kPins = {"tensor",
                                        "expert",
                                        "context",
                                        "attention",
                                        "data",
                                        "pipe",
                                        "submeshes",
                                        "starts",
                                        "balance",
                                        "micro",
                                        "sequence",
                                        "checkpoint",
                                        "every",
                                        "zero",
                                        "offload",
                                        "schedule",
                                        "chunks",
                                        "memory",
                                        "reserve",
                                        "smallest",
                                        "solver",
                                        "optimizer_resident",
                                        "optimizer_transient",
                                        "time_limit",
                                        "estimated",
                                        "threads",
                                        "host_devices",
                                        "forbid",
                                        "precision",
                                        "methods"};
// Methods that determine how the search's axes are used.
const std::vector<std::string> kOfAxes = {"tensor_parallel", "expert_parallel", "context_parallel",
                                          "pipeline_parallel"};
const std::vector<std::string> kPrecisions = {"none", "amp_native", "half"};
const std::vector<std::string> kAttention = {"all_gather", "ring", "all_to_all"};

int64_t count(const Json& value, const std::string& name, int64_t least) {
  if (!value.is_number_integer() || value.get<int64_t>() < least) {
    fail("search", "{} must be a whole number of at least {}, but got {}", name, least,
         value.dump());
  }
  return value.get<int64_t>();
}

double amount(const Json& value, const std::string& name) {
  if (!value.is_number() || !(value.get<double>() > 0)) {
    fail("search", "{} must be a number above 0, but got {}", name, value.dump());
  }
  return value;
}

double factor(const Json& value, const std::string& name) {
  if (!value.is_number() || !(value.get<double>() >= 0)) {
    fail("search", "{} must be a number of at least 0, but got {}", name, value.dump());
  }
  return value;
}

bool flag(const Json& value, const std::string& name) {
  if (!value.is_boolean())
    fail("search", "{} must be true or false, but got {}", name, value.dump());
  return value.get<bool>();
}

std::string name_of(const Json& value, const std::string& name,
                    const std::vector<std::string>& known) {
  if (!value.is_string()) fail("search", "{} must be a name, but got {}", name, value.dump());
  const auto given = value.get<std::string>();
  if (std::find(known.begin(), known.end(), given) == known.end()) {
    fail("search", "{} is {}, but got \"{}\"{}", name, fmt::join(known, ", "), given,
         did_you_mean(given, known));
  }
  return given;
}

std::vector<std::string> schedules() {
  const auto names = schedule_names();
  return {names.begin(), names.end()};
}

std::vector<std::string> names_in(const Json& value, const std::string& name) {
  const bool texts = value.is_array() && std::all_of(value.begin(), value.end(),
                                                     [](auto& item) { return item.is_string(); });
  if (!texts) fail("search", "{} must be a list of names, but got {}", name, value.dump());
  return value.get<std::vector<std::string>>();
}

// true: all of a block is recomputed, or, as with Megatron's `selective`, cheap ops; either may be
// asked for by name.
void set_checkpoint(Pins& pins, const Json& value) {
  pins.checkpoint = !value.is_boolean() || value.get<bool>();
  if (value.is_boolean()) return;
  if (!value.is_string()) {
    fail("search", "checkpoint must be true, false, \"full\" or \"selective\", but got {}",
         value.dump());
  }
  pins.selective = name_of(value, "checkpoint", {"full", "selective"}) == "selective";
}

// Sets the number of stages and the sizes of axes by the pinned submeshes.
void fix_axes(Pins& pins) {
  if (pins.submeshes.empty()) return;
  const auto fix = [](std::optional<int64_t>& pin, const char* name, int64_t size) {
    if (pin.value_or(size) != size) {
      fail("search", "submeshes have {} = {}, but {} = {} is pinned: leave it out", name, size,
           name, *pin);
    }
    pin = size;
  };
  fix(pins.pipe, "pipe", std::ssize(pins.submeshes));
  fix(pins.expert, "expert", 1);
  fix(pins.context, "context", 1);
  if (!are_identical(pins.submeshes)) {
    if (pins.tensor || pins.data) {
      fail("search", "submeshes have axes of their own, but {} is pinned: leave it out",
           pins.tensor ? "tensor" : "data");
    }
    return;
  }
  fix(pins.tensor, "tensor", pins.submeshes.front().tensor);
  fix(pins.data, "data", pins.submeshes.front().data);
  pins.sizes = "none";
  pins.submeshes.clear();
}

// Returns the fields of parallel_mode.
Json mesh_of(const Choice& choice) {
  if (!choice.submeshes.empty()) {
    auto submeshes = Json::array();
    for (const auto& [tensor, data] : choice.submeshes) {
      auto axes = Json::array();
      if (choice.tensor > 1) axes.push_back(Json::array({"tensor", tensor}));
      axes.push_back(Json::array({"data", data}));
      submeshes.push_back(std::move(axes));
    }
    return {{"submeshes", std::move(submeshes)}};
  }
  Json axes = Json::array({Json::array({"tensor", choice.tensor}),
                           Json::array({"expert", choice.expert}),
                           Json::array({"context", choice.context}),
                           Json::array({"data", choice.data}), Json::array({"pipe", choice.pipe})});
  // Axes of one rank are left out, except data.
  axes.erase(std::remove_if(axes.begin(), axes.end(),
                            [](const Json& a) { return a[1] == 1 && a[0] != "data"; }),
             axes.end());
  return axes;
}

}  // namespace

bool same_ops(const Choice& a, const Choice& b) {
  const auto shapes = [](const Choice& c) {
    return std::tie(c.tensor, c.expert, c.context, c.submeshes, c.micro, c.sequence, c.attention,
                    c.precision);
  };
  return shapes(a) == shapes(b);
}

int64_t Choice::batch() const {
  if (submeshes.empty()) return expert * data;
  int64_t ranks = 1;
  for (const auto& submesh : submeshes) ranks = std::lcm(ranks, submesh.data);
  return ranks;
}

Pins parse_pins(const Json& table) {
  Pins pins;
  if (!table.is_object() && !table.empty()) {
    fail("search", "pins are a table, but got {}", table.dump());
  }
  for (const auto& [key, value] : table.items()) {
    if (key == "tensor")
      pins.tensor = count(value, key, 1);
    else if (key == "expert")
      pins.expert = count(value, key, 1);
    else if (key == "context")
      pins.context = count(value, key, 1);
    else if (key == "data")
      pins.data = count(value, key, 1);
    else if (key == "pipe")
      pins.pipe = count(value, key, 1);
    else if (key == "micro")
      pins.micro = count(value, key, 1);
    else if (key == "chunks")
      pins.chunks = count(value, key, 1);
    else if (key == "every")
      pins.every = count(value, key, 1);
    else if (key == "sequence")
      pins.sequence = flag(value, key);
    else if (key == "checkpoint")
      set_checkpoint(pins, value);
    else if (key == "offload")
      pins.offload = flag(value, key);
    else if (key == "memory")
      pins.memory = amount(value, key);
    else if (key == "time_limit")
      pins.time_limit = amount(value, key);
    else if (key == "reserve")
      pins.model.reserve = factor(value, key);
    else if (key == "optimizer_resident")
      pins.model.optimizer_resident = factor(value, key);
    else if (key == "optimizer_transient")
      pins.model.optimizer_transient = factor(value, key);
    else if (key == "smallest")
      pins.smallest = count(value, key, 0);
    else if (key == "estimated")
      pins.estimated = flag(value, key);
    else if (key == "threads")
      pins.threads = count(value, key, 1);
    else if (key == "host_devices")
      pins.host_devices = count(value, key, 1);
    else if (key == "zero") {
      pins.zero = static_cast<int>(count(value, key, 0));
      if (*pins.zero > 3) fail("search", "zero is 0, 1, 2 or 3, but got {}", *pins.zero);
    } else if (key == "schedule") {
      pins.schedule = name_of(value, key, schedules());
    } else if (key == "submeshes") {
      if (value.is_boolean() && !value.get<bool>()) {
        pins.sizes = "none";
      } else if (value.is_string()) {
        pins.sizes = name_of(value, key, stage_sizes());
      } else {
        pins.submeshes = parse_submeshes(value);
      }
    } else if (key == "starts") {
      pins.starts = names_in(value, key);
    } else if (key == "balance") {
      pins.balance = factor(value, key);
      if (pins.balance > 1) fail("search", "balance is 0 to 1, but got {}", pins.balance);
    } else if (key == "forbid") {
      pins.forbid = names_in(value, key);
    } else if (key == "precision") {
      if (!value.is_array() || value.empty()) {
        fail("search", "precision must be a list of {}, but got {}", fmt::join(kPrecisions, ", "),
             value.dump());
      }
      for (const auto& item : value) pins.precision.push_back(name_of(item, key, kPrecisions));
    } else if (key == "solver") {
      pins.solver = name_of(value, key, {"labels", "ilp"});
    } else if (key == "attention") {
      pins.attention = name_of(value, key, kAttention);
    } else if (key == "methods") {
      if (!value.is_array() && !value.empty()) {
        fail("search", "methods must be a list, but got {}", value.dump());
      }
      if (value.is_array()) pins.methods = value;
    } else {
      fail("search", "pins are {}, but got \"{}\"{}", fmt::join(kPins, ", "), key,
           did_you_mean(key, kPins));
    }
  }
  fix_axes(pins);
  return pins;
}

namespace {

// Adds a method that every plan has. The fields of one that determines how an axis is used are
// added to the strategy's own use of it, and left out where the axis has one rank.
void add_pinned(Json& methods, const Json& method) {
  const auto name_of = [](const Json& m) { return m.is_array() && !m.empty() ? m.front() : m; };
  const auto name = name_of(method);
  if (std::ranges::none_of(kOfAxes, [&](auto axis) { return name == axis; })) {
    return methods.push_back(method);
  }
  for (auto& own : methods) {
    if (name_of(own) == name && method.size() == 2 && method[1].is_object()) {
      own[1].update(method[1]);
    }
  }
}

// Returns a pinned method without the fields that require a pipeline; null where none is left.
Json without_stages(Json method) {
  const bool overlaps = method.is_array() && method.size() == 2 && method[0] == "overlap" &&
                        method[1].is_object();
  for (const char* key : {"receives", "deferred_head", "head"}) {
    if (overlaps) method[1].erase(key);
  }
  return overlaps && method[1].empty() ? Json() : method;
}

}  // namespace

std::vector<std::string> whole_blocks(const Choice& choice, const std::vector<std::string>& blocks,
                                      const std::vector<int>& cuts) {
  std::vector<std::string> whole;
  if (!choice.checkpoint || choice.every < 2 || choice.pipe == 1) return whole;
  const auto stage_of_part = stage_of_parts(choice.schedule, static_cast<int>(choice.pipe),
                                            static_cast<int>(choice.chunks));
  std::vector<int64_t> seen(static_cast<size_t>(choice.pipe));
  size_t part = 0;
  for (size_t block = 0; block < blocks.size(); ++block) {
    if (part < cuts.size() && static_cast<int>(block) == cuts[part]) ++part;
    auto& count = seen[static_cast<size_t>(stage_of_part[part])];
    if (count++ % choice.every == 0) whole.push_back(blocks[block]);
  }
  return whole;
}

Json strategy_of(const Choice& choice, const Pins& pins, const BlockRow& row) {
  Json methods = Json::array();
  auto axes = mesh_of(choice);
  if (!pins.forbid.empty() && axes.is_object()) {
    axes["forbid"] = pins.forbid;
  } else if (!pins.forbid.empty()) {
    Json fields{{"forbid", pins.forbid}};  // beside the items
    for (size_t i = 0; i < axes.size(); ++i) fields[std::to_string(i + 1)] = axes[i];
    axes = std::move(fields);
  }
  methods.push_back(Json::array({"parallel_mode", axes}));
  if (choice.tensor > 1) {
    Json fields = Json::object();
    if (choice.sequence) fields["sequence"] = true;
    if (pins.smallest > 0) fields["smallest"] = pins.smallest;
    methods.push_back(Json::array({"tensor_parallel", fields}));
  }
  if (choice.expert > 1) methods.push_back(Json::array({"expert_parallel", Json::object()}));
  if (choice.context > 1) {
    methods.push_back(Json::array({"context_parallel", Json{{"attention", choice.attention}}}));
  }
  if (choice.pipe > 1) {
    Json fields{{"schedule", choice.schedule}};
    if (choice.chunks > 1) fields["chunks"] = choice.chunks;
    if (!choice.costs.empty()) fields["costs"] = choice.costs;
    if (!choice.starts.empty()) fields["starts"] = choice.starts;
    methods.push_back(Json::array({"pipeline_parallel", fields}));
    const bool given = std::any_of(pins.methods.begin(), pins.methods.end(), [](const Json& m) {
      return m == "overlap" || (m.is_array() && !m.empty() && m.front() == "overlap");
    });
    if (!given) methods.push_back(Json::array({"overlap", Json{{"receives", true}}}));
  }
  if (choice.microbatches > 1 || choice.pipe > 1) {
    methods.push_back(
        Json::array({"gradient_accumulation", Json{{"microbatches", choice.microbatches}}}));
  }
  if (choice.checkpoint && !choice.selective && !choice.recomputed_blocks.empty()) {
    methods.push_back(Json::array({"checkpoint", choice.recomputed_blocks}));
  } else if (choice.checkpoint && choice.every > 0) {
    Json fields{{"1", row.pattern}};  // items beside a field
    for (size_t i = 0; i < row.more_patterns.size(); ++i) {
      fields[std::to_string(i + 2)] = row.more_patterns[i];
    }
    if (choice.selective) fields["keep"] = row.keep;
    if (!choice.recomputed_blocks.empty()) {
      fields["full"] = choice.recomputed_blocks;
    } else if (choice.every > 1) {
      fields[choice.selective ? "full_every" : "every"] = choice.every;
    }
    methods.push_back(Json::array({"checkpoint", std::move(fields)}));
  }
  if (choice.zero > 0 && choice.parts() > 1) {
    const char* const names[] = {"", "zero1", "zero2", "fsdp"};
    Json fields = Json::object();
    if (choice.context > 1) fields["axis"] = choice.data > 1 ? "context,data" : "context";
    methods.push_back(Json::array({names[choice.zero], fields}));
  }
  if (choice.precision != "none") {
    methods.push_back(Json::array({choice.precision, Json{{"dtype", "bf16"}}}));
  }
  if (choice.offload) methods.push_back(Json::array({"offload", Json{{"optimizer", true}}}));
  for (const auto& method : pins.methods) {
    const auto own = choice.pipe > 1 ? method : without_stages(method);
    if (!own.is_null()) add_pinned(methods, own);
  }
  return methods;
}

std::string program_of(Choice choice, const Pins& pins, const BlockRow& row) {
  std::string orders;
  if (choice.pipe > 1) {
    ScheduleOptions options{.name = choice.schedule,
                            .stages = static_cast<int>(choice.pipe),
                            .microbatches = static_cast<int>(choice.microbatches),
                            .chunks = static_cast<int>(choice.chunks)};
    if (!choice.costs.empty()) {
      options.forward = choice.costs[0], options.backward = choice.costs[1];
      options.wgrad = choice.costs[2], options.transfer = choice.costs[3];
    }
    const auto schedule = make_schedule(options);
    for (const auto& order : schedule.orders) {
      for (const auto& op : order) orders += perigee::to_text(op);
      orders += '\n';
    }
    for (int stage : stage_of_parts(choice.schedule, schedule.stages, schedule.chunks)) {
      orders += fmt::format("{} ", stage);
    }
    orders += splits_backward(choice.schedule) ? "split" : "whole";
    choice.schedule = "";
    choice.costs.clear();
  }
  return strategy_of(choice, pins, row).dump() + orders;
}

std::string to_string(const Choice& choice) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  const bool homogeneous = choice.submeshes.empty();
  if (choice.tensor > 1 && homogeneous) {
    add(fmt::format("tensor {}{}", choice.tensor, choice.sequence ? " with sequence" : ""));
  }
  if (choice.expert > 1) add(fmt::format("expert {}", choice.expert));
  if (choice.context > 1) add(fmt::format("context {} by {}", choice.context, choice.attention));
  if (choice.pipe > 1) {
    add(fmt::format("pipe {} by {}{}", choice.pipe, choice.schedule,
                    choice.chunks > 1 ? fmt::format(" of {} chunks", choice.chunks) : ""));
  }
  if (!homogeneous) {
    add(fmt::format("stages of {}{}", to_string(choice.submeshes),
                    choice.sequence ? " with sequence" : ""));
  } else {
    add(fmt::format("data {}", choice.data));
  }
  add(fmt::format("{} microbatch{} of {}", choice.microbatches,
                  choice.microbatches == 1 ? "" : "es", choice.micro));
  if (choice.zero > 0) add(fmt::format("zero {}", choice.zero));
  if (choice.checkpoint && choice.every == 0) {
    if (!choice.recomputed_blocks.empty())
      add(fmt::format("checkpoint of {} blocks", choice.recomputed_blocks.size()));
  } else if (choice.checkpoint) {
    const auto* of = choice.selective ? ", full of" : " of";
    add(fmt::format("{}checkpoint{}", choice.selective ? "selective " : "",
                    choice.every > 1 ? fmt::format("{} one block in {}", of, choice.every) : ""));
  }
  if (choice.precision != "none") add("bfloat16 by " + choice.precision);
  if (choice.offload) add("optimizer state on the host");
  return text;
}

}  // namespace perigee::search
