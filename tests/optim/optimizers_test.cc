// The optimizers' update functions against torch.optim, and their descriptions.
#include "optim/optimizers.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "optim/elementwise.h"

namespace perigee::optim {
namespace {

// The same formulas as in make_fixtures.py.
constexpr int kElements = 6;
double first_weight(int i) { return ((i * 5) % 7 - 3) / 4.0; }
double gradient(int i, int step) { return ((i * 7 + step * 13) % 11 - 5) / 8.0; }

template <class O>
struct Trained {
  double weights[kElements];
  double states[kElements][kStateCount<O>] = {};
};

// Takes one step with the gradients divided by `divisor`, which the scale compensates.
template <class O>
void step(Trained<O>& trained, const Options& options, StepNumbers now, double divisor = 1) {
  const auto& optimizer = *find_optimizer(O::kName);
  double values[kAttributeCount<O>];
  for (size_t k = 0; k < kAttributeCount<O>; ++k) {
    values[k] = value_of(optimizer, O::kAttributes[k].name, options);
  }
  typename O::Numbers numbers;
  static_assert(sizeof numbers == sizeof values);
  std::memcpy(&numbers, values, sizeof values);
  unsigned held = 0;
  for (size_t k = 0; k < kStateCount<O>; ++k) {
    const char* needs = O::kStates[k].needs;
    if (!needs || value_of(optimizer, needs, options) != 0) held |= 1u << k;
  }
  now.scale = divisor;
  const auto constants = O::template constants<double>(numbers, now);
  const bool known = with_states<O>(held, [&]<unsigned kHeld>() {
    for (int i = 0; i < kElements; ++i) {
      const double g = gradient(i, static_cast<int>(now.step)) / divisor;
      trained.weights[i] = O::template update<kHeld>(trained.weights[i], g, trained.states[i],
                                                     constants);
    }
  });
  REQUIRE(known);
}

template <class O>
void compare_with_torch(const nlohmann::json& fixture) {
  for (const auto& given : fixture.at("cases")) {
    INFO(O::kName << " " << given.at("options").dump());
    Options options;
    StepNumbers now;
    for (const auto& item : given.at("options").items()) {
      const std::string& name = item.key();
      const nlohmann::json& value = item.value();
      const double number = value.is_boolean() ? double(value.get<bool>()) : value.get<double>();
      if (name == "lr") {
        now.lr = number;
      } else if (name == "weight_decay") {
        now.weight_decay = number;
      } else {
        options[name] = number;
      }
    }
    check_options(options);
    Trained<O> trained;
    for (int i = 0; i < kElements; ++i) trained.weights[i] = first_weight(i);
    int taken = 0;
    for (size_t row = 0; row < fixture.at("steps").size(); ++row) {
      for (const int last = fixture.at("steps")[row]; taken < last;) {
        now.step = ++taken;
        step<O>(trained, options, now, 4);
      }
      for (int i = 0; i < kElements; ++i) {
        INFO("step " << taken << ", element " << i);
        const double expected = given.at("weights")[row][i];
        CHECK(std::abs(trained.weights[i] - expected) < 1e-10);
      }
    }
    REQUIRE(taken == 20);
  }
}

template <class O>
void compare_where_known() {
  std::ifstream in(std::string("tests/optim/fixtures/") + O::kName + ".json");
  if (std::string_view(O::kName) == "lion")
    return;  // not in torch.optim: tests/exec compares it with its paper
  REQUIRE(in.good());
  compare_with_torch<O>(nlohmann::json::parse(in));
}

}  // namespace

TEST_CASE("20 steps of each optimizer equal torch.optim's to 1e-10") {
#define PERIGEE_COMPARE(O) compare_where_known<O>();
  PERIGEE_ELEMENTWISE_OPTIMIZERS(PERIGEE_COMPARE)
#undef PERIGEE_COMPARE
}

TEST_CASE("attributes that share a job key have one type and one set of limits") {
  std::map<std::pair<std::string, int>, Attribute> keys;
  for (const auto& optimizer : optimizers()) {
    std::set<std::string> names;
    for (const auto& a : optimizer.attributes) {
      INFO(optimizer.name << " " << a.name);
      CHECK(names.insert(a.name).second);
      CHECK((!a.needs || optimizer.find(a.needs)));
      CHECK((!a.excludes || optimizer.find(a.excludes)));
      const auto& first = keys.try_emplace({a.key ? a.key : a.name, a.item}, a).first->second;
      CHECK(first.type == a.type);
      CHECK(first.least == a.least);
      CHECK(first.more_than == a.more_than);
      CHECK(first.most == a.most);
      CHECK(first.less_than == a.less_than);
    }
    for (const auto& state : optimizer.states) {
      CHECK((!state.needs || optimizer.find(state.needs)));
    }
    CHECK((optimizer.others.empty() || find_optimizer(optimizer.others)));
  }
}

TEST_CASE("states exist where the attribute they need is not zero") {
  const auto& sgd = *find_optimizer("sgd");
  CHECK(flat_states(sgd, {}).empty());
  CHECK(flat_states(sgd, {{"momentum", 0.9}}) == std::vector<std::string>{"momentum_buffer"});
  const auto& rmsprop = *find_optimizer("rmsprop");
  CHECK(flat_states(rmsprop, {{"centered", 1}}) ==
        std::vector<std::string>{"square_avg", "grad_avg"});
  CHECK(flat_states(*find_optimizer("muon"), {}).empty());
  CHECK_THROWS_WITH(check_options({{"momentun", 1}}), Catch::Contains("did you mean \"momentum"));
}

}  // namespace perigee::optim
