#include "tests/capture/exported/support.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

namespace perigee::test {
namespace {

using nlohmann::json;

const std::string kFolder = "tests/capture/exported/fixtures/";

json tensor_meta(const std::vector<int64_t>& sizes, int dtype, bool requires_grad = false) {
  json meta{{"dtype", dtype},
            {"requires_grad", requires_grad},
            {"device", {{"type", "cpu"}, {"index", nullptr}}},
            {"storage_offset", {{"as_int", 0}}},
            {"layout", 7},
            {"sizes", json::array()},
            {"strides", json::array()}};
  int64_t stride = 1;
  for (const int64_t size : sizes) stride *= std::max<int64_t>(size, 1);
  for (const int64_t size : sizes) {
    stride /= std::max<int64_t>(size, 1);
    meta["sizes"].push_back(
        size < 0 ? json{{"as_expr",
                         {{"expr_str", "Symbol('s0', positive=True)"}, {"hint", {{"as_int", 2}}}}}}
                 : json{{"as_int", size}});
    meta["strides"].push_back({{"as_int", stride}});
  }
  return meta;
}

int number_of(at::ScalarType type) {
  if (type == at::kFloat) return 7;
  return type == at::kLong ? 5 : type == at::kBool ? 12 : 8;
}

// The deterministic batch of make_fixtures.py.
at::Tensor made(const json& field) {
  const auto shape = field.at("shape").get<std::vector<int64_t>>();
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const auto i = at::arange(numel, at::kLong);
  if (!field.contains("below")) {
    return ((i * 7 + 3) % 23 - 11).to(at::kDouble).div(7).reshape(shape);
  }
  auto value = (i * 7919 + field.value("from", 13)) % field.at("below").get<int64_t>();
  if (const int64_t every = field.value("ignore_every", 0)) {
    value = at::where(i % every == every - 1, at::full({}, -100, at::kLong), value);
  }
  value = value.reshape(shape);
  return field.value("boolean", false) ? value.to(at::kBool) : value;
}

}  // namespace

double Fixture::tolerance() const {
  if (expected.value("bfloat16", false)) return 2e-2;
  return expected.at("float32").get<bool>() ? 1e-6 : 1e-10;
}

std::string Fixture::computes_in() const {
  if (expected.value("bfloat16", false)) return "bfloat16";
  return expected.at("float32").get<bool>() ? "float32" : "float64";
}

Batch Fixture::batch(int64_t samples) const {
  Batch batch;
  for (const auto& [name, field] : expected.at("batch").items()) {
    batch[name] = made(field);
    if (computes_in() == "bfloat16" && batch[name].is_floating_point()) {
      batch[name] = batch[name].to(at::kFloat);
    }
    if (samples > 0) batch[name] = batch[name].narrow(0, 0, samples).contiguous();
  }
  return batch;
}

const std::vector<Fixture>& fixtures() {
  static const auto all = [] {
    std::ifstream file(kFolder + "expected.json");
    std::vector<Fixture> all;
    const auto models = json::parse(file).at("models");
    for (const auto& [name, expected] : models.items()) {
      all.push_back({name, kFolder + expected.at("file").get<std::string>(), expected});
    }
    return all;
  }();
  return all;
}

const Fixture& fixture(const std::string& name) {
  const auto found = std::ranges::find(fixtures(), name, &Fixture::name);
  REQUIRE(found != fixtures().end());
  return *found;
}

std::string compare(const std::map<std::string, at::Tensor>& got, const json& expected,
                    double tolerance) {
  const auto differs = [&](double a, double b, double scale) {
    return !(std::abs(a - b) <= tolerance * (scale + std::abs(b)));
  };
  const double loss = got.at("loss").item<double>(), wanted = expected.at("loss");
  if (differs(loss, wanted, 0)) return fmt::format("loss {} instead of {}", loss, wanted);
  const auto& gradients = expected.at("gradients");
  double largest = 0;
  for (const auto& [name, numbers] : gradients.items()) {
    largest = std::max(largest, numbers.at(0).get<double>());
  }
  for (const auto& [name, numbers] : gradients.items()) {
    const auto found = got.find("gradient:" + name);
    if (found == got.end()) return name + " has no gradient";
    const auto gradient = found->second.to(at::kDouble).flatten();
    const auto i = at::arange(gradient.numel(), at::kLong);
    const auto direction = ((i * 37) % 101 - 50).to(at::kDouble) / 50;
    const double norm = gradient.norm().item<double>();
    const double projection = gradient.dot(direction).item<double>();
    // Relative to the model's largest gradient: a gradient of 0 is one of rounding.
    if (differs(norm, numbers.at(0), largest)) {
      return fmt::format("{} has norm {} instead of {}", name, norm, numbers.at(0).get<double>());
    }
    const double length = direction.norm().item<double>();
    if (differs(projection, numbers.at(1), largest * length)) {
      return fmt::format("{} has projection {} instead of {}", name, projection,
                         numbers.at(1).get<double>());
    }
  }
  for (const auto& [name, value] : got) {
    if (name.starts_with("gradient:") && !gradients.contains(name.substr(9))) {
      return name + " is not PyTorch's";
    }
  }
  return "";
}

Model load(const ArchiveMaker& archive) {
  const Folder folder;
  return load_exported(archive.write(folder.at("m.pt2")));
}

Batch samples(int64_t count) { return {{"x", normal({count, 4})}, {"y", normal({count, 2})}}; }

json call(const std::string& op, const Inputs& inputs, const std::string& output) {
  return node("torch.ops.aten." + op, inputs, {output});
}

json tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }

json tensors(const std::vector<std::string>& names) {
  auto list = json::array();
  for (const auto& name : names) list.push_back({{"name", name}});
  return {{"as_tensors", list}};
}

json size(const std::string& name) { return {{"as_sym_int", {{"as_name", name}}}}; }

json node(const std::string& target, const Inputs& inputs, const std::vector<std::string>& outputs,
          const std::string& module) {
  json node{{"target", target},
            {"inputs", json::array()},
            {"outputs", json::array()},
            {"metadata", json::object()},
            {"is_hop_single_tensor_return", nullptr}};
  for (const auto& [name, argument] : inputs) {
    node["inputs"].push_back({{"name", name}, {"arg", argument}, {"kind", 1}});
  }
  for (const auto& name : outputs) node["outputs"].push_back(tensor(name));
  if (!module.empty()) {
    node["metadata"]["nn_module_stack"] = "L__self__,,net.Net;L__self___" + module + "," + module +
                                          ",torch.nn.modules.linear.Linear";
  }
  return node;
}

ArchiveMaker::ArchiveMaker() {
  const auto input = [](const std::string& name) {
    return json{{"user_input", {{"arg", tensor(name)}}}};
  };
  const auto parameter = [](const std::string& value, const std::string& name) {
    return json{{"parameter", {{"arg", {{"name", value}}}, {"parameter_name", name}}}};
  };
  program = {{"schema_version", {{"major", 8}, {"minor", 17}}},
             {"torch_version", "2.11.0"},
             {"range_constraints", {{"s0", {{"min_val", 2}, {"max_val", nullptr}}}}}};
  graph() = {{"inputs", json::array()},
             {"outputs", json::array()},
             {"nodes", json::array()},
             {"tensor_values", json::object()}};
  signature() = {
      {"input_specs",
       {parameter("w", "layer.weight"), parameter("b", "layer.bias"), input("x"), input("y")}},
      {"output_specs", json::array()}};
  value("x", {-1, 4});
  value("y", {-1, 2});
  value("w", {2, 4});
  value("b", {2});
  weights["layer.weight"] = at::arange(8, at::kDouble).view({2, 4}).sin().requires_grad_();
  weights["layer.bias"] = at::arange(2, at::kDouble).cos().requires_grad_();
  nodes() = {node("torch.ops.aten.linear.default",
                  {{"input", tensor("x")}, {"weight", tensor("w")}, {"bias", tensor("b")}}, {"h"},
                  "layer"),
             node("torch.ops.aten.mse_loss.default",
                  {{"self", tensor("h")}, {"target", tensor("y")}}, {"loss"})};
  results({{"", "loss"}});
}

void ArchiveMaker::value(const std::string& name, const std::vector<int64_t>& sizes, int dtype) {
  graph()["tensor_values"][name] = tensor_meta(sizes, dtype);
}

void ArchiveMaker::results(const std::vector<std::pair<std::string, std::string>>& of) {
  const json leaf{{"type", nullptr}, {"context", nullptr}, {"children_spec", json::array()}};
  auto specs = json::array(), keys = json::array(), leaves = json::array();
  for (const auto& [key, value] : of) {
    specs.push_back({{"user_output", {{"arg", tensor(value)}}}});
    keys.push_back(key);
    leaves.push_back(leaf);
  }
  signature()["output_specs"] = specs;
  const json tree = of.size() == 1 && of[0].first.empty() ? leaf
                                                          : json{{"type", "builtins.dict"},
                                                                 {"context", keys.dump()},
                                                                 {"children_spec", leaves}};
  program["graph_module"]["module_call_graph"] = {
      {{"fqn", ""}, {"signature", {{"out_spec", json{1, tree}.dump()}}}}};
}

std::string ArchiveMaker::write(const std::string& path) const {
  caffe2::serialize::PyTorchStreamWriter writer(path);
  const auto record = [&](const std::string& name, const std::string& text) {
    writer.writeRecord(name, text.data(), text.size());
  };
  record("archive_format", "pt2");
  record("models/model.json", program.dump());
  const auto store = [&](const std::string& folder, const std::string& list,
                         const std::map<std::string, at::Tensor>& tensors) {
    auto config = json::object();
    std::map<const void*, std::string> written;
    for (const auto& [name, tensor] : tensors) {
      auto& payload = written[tensor.const_data_ptr()];
      if (payload.empty()) {
        payload = "payload_" + std::to_string(written.size());
        writer.writeRecord(folder + payload, tensor.const_data_ptr(), tensor.nbytes());
      }
      config[name] = {
          {"path_name", payload},
          {"is_param", tensor.requires_grad()},
          {"use_pickle", false},
          {"tensor_meta",
           tensor_meta(stated_sizes.contains(name) ? stated_sizes.at(name) : tensor.sizes().vec(),
                       number_of(tensor.scalar_type()), tensor.requires_grad())}};
    }
    record(folder + list, json{{"config", config}}.dump());
  };
  store("data/weights/", "model_weights_config.json", weights);
  store("data/constants/", "model_constants_config.json", constants);
  writer.writeEndOfFile();
  return path;
}

}  // namespace perigee::test
