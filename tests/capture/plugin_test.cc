#include <cstdlib>

#include "base/error.h"
#include "base/version.h"
#include "tests/capture/support.h"

namespace perigee::test {
namespace {

std::string build_folder() {
  const char* folder = std::getenv("PERIGEE_BUILD");
  return folder ? folder : "build";
}

}  // namespace

TEST_CASE("a plugin's model is captured, deferred or not") {
  const auto model = load_plugin(build_folder() + "/libplugin_model.so", "{}");
  const Batch batch{{"x", torch::ones({5, 4})}, {"y", torch::zeros({5, 3})}};
  const auto captured = capture(*model.module, batch, model.forward);
  CHECK(captured.graph.find_output(graph::Output::Kind::gradient, "out.weight"));
  auto inputs = exec::evaluate(captured.init, {}, {.seed = 3});
  inputs.insert(batch.begin(), batch.end());
  const auto got = exec::evaluate(captured.graph, inputs);
  const auto hidden = torch::relu(
      torch::linear(batch.at("x"), inputs.at("in.weight"), inputs.at("in.bias")));
  const auto y = torch::linear(hidden, inputs.at("out.weight"), inputs.at("out.bias"));
  CHECK(torch::allclose(got.at("y"), y));
  CHECK(got.at("loss").item<float>() == Approx(y.square().mean().item<float>()));
}

TEST_CASE("a plugin that returns no model is an error with its reason") {
  const auto path = build_folder() + "/libplugin_model.so";
  CHECK_THROWS_WITH(load_plugin("/nowhere.so", "{}"), Catch::Contains("/nowhere.so"));
  CHECK_THROWS_WITH(load_plugin(path, "broken"), Catch::Contains("no such width"));
  CHECK_THROWS_WITH(load_plugin(path, "empty"), Catch::Contains("gave no module"));
  CHECK_THROWS_WITH(load_plugin(build_folder() + "/libperigee_core.so", "{}"),
                    Catch::Contains("exports perigee_model"));
}

TEST_CASE("a plugin of another version is refused before it is called") {
  const auto refusal = [](const std::string& kind) {
    const auto path = build_folder() + "/libplugin_of_other_" + kind + ".so";
    try {
      load_plugin(path, "{}");
    } catch (const Error& error) {
      CHECK_THAT(error.what(), Catch::Contains(path) && Catch::EndsWith(": build it again"));
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string perigee(kVersion);
  CHECK_THAT(refusal("perigee"),
             Catch::Contains("must be built with Perigee " + perigee + " and LibTorch 2.") &&
                 Catch::Contains("was built with Perigee 0.0.9 and LibTorch "));
  CHECK_THAT(refusal("torch"),
             Catch::Contains("was built with Perigee " + perigee + " and LibTorch 1.13.1"));
  CHECK_THAT(refusal("none"), Catch::Contains("must be built with Perigee " + perigee) &&
                                  Catch::Contains("was built with an earlier one"));
}

}  // namespace perigee::test
