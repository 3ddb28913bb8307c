// The method fp8: the emulation is bit-exact, ranks train as one device does, and histories are
// kept between steps.
#include "tests/support/torch_test.h"
//
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "compile/graph/fp8.h"
#include "exec/reference/reference.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"

namespace perigee::parity {
namespace {

using Catch::Matchers::Contains;
using compile::Instruction;
using compile::Program;

constexpr int64_t kFp8Rows = 4;

// The numbers of a format that are not negative, by their bits.
std::vector<float> numbers(int mantissa_bits, int bias, int codes) {
  std::vector<float> all;
  for (int code = 0; code < codes; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = double(mantissa) / (1 << mantissa_bits);
    all.push_back(static_cast<float>(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                                   : std::ldexp(1 + fraction, exponent - bias)));
  }
  return all;
}

// The nearest number of the list, with the sign; of two equally near ones that with an even code.
float nearest(const std::vector<float>& all, float x) {
  const float size = std::abs(x);
  size_t best = 0;
  for (size_t code = 1; code < all.size(); ++code) {
    const double now = std::abs(double(all[code]) - size),
                 before = std::abs(double(all[best]) - size);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return std::copysign(all[best], x);
}

// Evaluates one op on x with a scale.
at::Tensor evaluated(const std::string& op, std::vector<std::pair<std::string, graph::Arg>> args,
                     const at::Tensor& x, double scale) {
  graph::Graph g;
  g.scopes.push_back({"", ""});
  const graph::TensorType type{graph::DType::float32, x.sizes().vec()};
  args.insert(args.begin(), {"self", g.add_input(graph::Input::Kind::data, "x", type)});
  if (op == "perigee::fp8") {
    args.insert(args.begin() + 1, {"scale", g.add_input(graph::Input::Kind::data, "scale",
                                                        {graph::DType::float32, {}})});
  }
  const auto y = g.add_node(op, args, {type})[0];
  g.outputs.push_back({graph::Output::Kind::result, "y", y});
  return exec::evaluate(g, {{"x", x}, {"scale", at::scalar_tensor(scale, at::kFloat)}}).at("y");
}

std::string strategy(const std::string& axes, const std::string& config,
                     const std::string& more = "") {
  return R"([["parallel_mode", )" + axes + R"(], ["fp8", )" + config + "]" + more + "]";
}

const std::string kFp8One = R"([["data", 1]])";

// Ranks scale by their own largest magnitudes.
void without_max(Program& program) {
  std::set<int32_t> events;
  for (auto& section : program.sections) {
    std::erase_if(section.instructions, [&](const Instruction& i) {
      const bool max = i.op == "comm::all_reduce" &&
                       std::any_of(i.args.begin(), i.args.end(), [](auto& arg) {
                         return arg.first == "op" && arg.second == graph::Arg(std::string("max"));
                       });
      if (max) events.insert(i.event);
      return max || (i.kind == Instruction::Kind::wait && events.contains(i.event));
    });
  }
}

}  // namespace

TEST_CASE("eight-bit floats are rounded bit-equal to their formats") {
  const auto e4m3 = numbers(3, 7, 0x7F), e5m2 = numbers(2, 15, 0x7C);
  CHECK(e4m3.back() == 448);
  CHECK(e5m2.back() == 57344);
  std::vector<float> inputs;
  for (const auto* all : {&e4m3, &e5m2}) {
    for (size_t code = 0; code < all->size(); ++code) {  // each number, each tie, their neighbours
      const float next = code + 1 < all->size() ? (*all)[code + 1] : 1e6f;
      const float tie = ((*all)[code] + next) / 2;
      for (const float x :
           {(*all)[code], tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
        inputs.push_back(x);
        inputs.push_back(-x);
      }
    }
  }
  torch::manual_seed(2);
  const auto random = at::randn({2000}) * at::pow(2.0, at::randint(-20, 18, {2000}).to(at::kFloat));
  for (int64_t i = 0; i < random.size(0); ++i) inputs.push_back(random[i].item<float>());
  const auto x = at::tensor(inputs);
  for (const bool wide : {false, true}) {
    const std::string format = wide ? "e5m2" : "e4m3";
    for (const float scale : {1.0f, 0.37f}) {
      const auto y = evaluated("perigee::fp8", {{"format", format}}, x, scale);
      int wrong = 0;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const float expected = nearest(wide ? e5m2 : e4m3, inputs[i] * scale) / scale;
        const float got = y[static_cast<int64_t>(i)].item<float>();
        wrong += std::memcmp(&expected, &got, sizeof got) != 0;
      }
      CHECK(wrong == 0);
    }
  }
  // Each row is scaled such that its largest number becomes the format's largest, or half of it.
  const auto rows = at::tensor({3.0f, -0.7f, 0.02f, 100.0f, 0.0f, 0.0f}).view({3, 2});
  const auto rounded = [&](const char* format, int64_t margin, const at::Tensor& amax) {
    graph::Graph g;
    g.scopes.push_back({"", ""});
    const graph::TensorType type{graph::DType::float32, {3, 2}};
    const graph::TensorType numbers{graph::DType::float32, {3, 1}};
    const auto x = g.add_input(graph::Input::Kind::data, "x", type);
    const auto a = g.add_input(graph::Input::Kind::data, "amax", numbers);
    const auto y = g.add_node(
        "perigee::fp8_rows",
        {{"self", x}, {"amax", a}, {"format", std::string(format)}, {"margin", margin}}, {type})[0];
    g.outputs.push_back({graph::Output::Kind::result, "y", y});
    return exec::evaluate(g, {{"x", rows}, {"amax", amax}}).at("y");
  };
  const auto amax = at::tensor({3.0f, 100.0f, 0.0f}).view({3, 1});
  for (const int64_t margin : {0, 1}) {
    const auto by_rows = rounded("e5m2", margin, amax);
    for (int r = 0; r < 3; ++r) {
      const float scale = r == 2 ? 1 : 57344.0f / float(1 << margin) / amax[r][0].item<float>();
      for (int c = 0; c < 2; ++c) {
        CHECK(by_rows[r][c].item<float>() ==
              nearest(e5m2, rows[r][c].item<float>() * scale) / scale);
      }
    }
  }
  // Each block is scaled such that its largest number becomes the format's largest.
  const auto blocks = at::tensor({1.0f, 0.5f, -3.0f, 100.0f, 0.001f});
  const auto y = evaluated("perigee::fp8_blocks",
                           {{"format", std::string("e4m3")},
                            {"dim", int64_t{0}},
                            {"block", int64_t{2}},
                            {"margin", int64_t{0}}},
                           blocks, 1);
  for (const auto& [at, of] :
       std::vector<std::pair<int, float>>{{0, 1}, {1, 1}, {2, 100}, {3, 100}, {4, 0.001f}}) {
    const float scale = 448.0f / of;
    CHECK(y[at].item<float>() == nearest(e4m3, blocks[at].item<float>() * scale) / scale);
  }
}

TEST_CASE("ranks with fp8 round as one device does") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kFp8Rows);
  const auto full = train(given,
                          plan_of(given, R"([["parallel_mode", [["data", 1]]]])", kFp8Rows))[0];
  for (const std::string config :
       {R"({"fp8": "hybrid", "fp8_recipe": "tensorwise"})",
        R"({"fp8": "hybrid", "fp8_amax_history_len": 2, "fp8_amax_compute_algo": "max"})",
        R"({"fp8_recipe": "blockwise", "fp8_block": 5, "match": ["blocks.*"]})",
        R"({"fp8": "hybrid", "fp8_recipe": "rowwise", "fp8_margin": 1})",
        R"({"fp8_recipe": "tensorwise", "fp8_wgrad": false, "fp8_margin": 1})"}) {
    INFO(config);
    const auto one_device = plan_of(given, strategy(kFp8One, config), kFp8Rows);
    CHECK((plan::parse(plan::print(one_device)) == one_device));
    const auto one = train(given, one_device, {}, {.clip_norm = 0.5}, 3)[0];
    CHECK(one.losses[0] == Approx(full.losses[0]).epsilon(0.05));
    CHECK(compare(full, one) != "");
    const bool delayed = config.find("history") != config.npos;
    CHECK((one.tensors.lower_bound("fp8:") != one.tensors.end() &&
           one.tensors.lower_bound("fp8:")->first.starts_with("fp8:")) == delayed);
    for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
             {R"([["data", 2]])", ""},
             {R"([["tensor", 2], ["data", 2]])", R"(, ["tensor_parallel", {"sequence": true}])"},
             {R"([["data", 2]])", R"(, ["fsdp", {}], ["checkpoint", ["blocks.*"]])"}}) {
      INFO(axes << more);
      const auto plan = plan_of(given, strategy(axes, config, more), kFp8Rows);
      CHECK(compare(one, train(given, plan, {}, {.clip_norm = 0.5}, 3)) == "");
      if (config.find("tensorwise") == config.npos && config.find("rowwise") == config.npos)
        continue;
      if (!more.empty()) continue;
      CHECK(compare(one, train(given, plan, without_max, {.clip_norm = 0.5}, 3)) != "");
    }
  }
}

TEST_CASE("a scale of fp8 holds for its interval of microbatches") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kFp8Rows);
  const auto config = [](int interval) {
    return R"({"fp8": "hybrid", "fp8_amax_history_len": 2, "fp8_interval": )" +
           std::to_string(interval) + "}";
  };
  const auto losses = [&](int interval, int64_t steps) {
    return train(given, plan_of(given, strategy(kFp8One, config(interval)), kFp8Rows), {},
                 {.clip_norm = 0.5}, steps)[0];
  };
  const auto each = losses(1, 4), second = losses(2, 4), never = losses(100, 4);
  // The first scale is 1; the second microbatch has another, or with an interval of two still 1.
  CHECK(second.losses[0] == each.losses[0]);
  CHECK(second.losses[1] == never.losses[1]);
  CHECK(each.losses[1] != second.losses[1]);
  CHECK(second.losses[2] != never.losses[2]);
  // The scale in use and the number of its uses are kept.
  const auto held = second.tensors.find("fp8:blocks.0.attn.q.0.input.held");
  REQUIRE(held != second.tensors.end());
  CHECK(held->second.first[1].item<float>() == 2);
  CHECK(held->second.first[0].item<float>() != 1);
  for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
           {R"([["data", 2]])", ""},
           {R"([["tensor", 2]])", R"(, ["tensor_parallel", {}])"},
           {R"([["data", 2]])", R"(, ["fsdp", {}], ["checkpoint", ["blocks.*"]])"}}) {
    INFO(axes << more);
    const auto plan = plan_of(given, strategy(axes, config(2), more), kFp8Rows);
    CHECK((plan::parse(plan::print(plan)) == plan));
    CHECK(compare(second, train(given, plan, {}, {.clip_norm = 0.5}, 4)) == "");
    const auto other = plan_of(given, strategy(axes, config(1), more), kFp8Rows);
    CHECK(compare(second, train(given, other, {}, {.clip_norm = 0.5}, 4)) != "");
  }
}

TEST_CASE("without reduce_amax each rank scales by its own maximum, without communication") {
  torch::manual_seed(5);
  const auto given = built_in(kLlama, kFp8Rows);
  const auto same = [](const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
    bool equal = a.size() == b.size();
    for (size_t r = 0; equal && r < a.size(); ++r) {
      equal = a[r].losses == b[r].losses && a[r].norms == b[r].norms;
    }
    return equal;
  };
  for (const std::string recipe :
       {R"("fp8_recipe": "tensorwise")",
        R"("fp8_amax_history_len": 2, "fp8_amax_compute_algo": "max", "fp8_interval": 2)"}) {
    for (const auto& [axes, more] : std::vector<std::pair<std::string, std::string>>{
             {R"([["data", 2]])", ""},
             // Without the head, whose loss takes maxima, too.
             {R"([["tensor", 2], ["data", 2]])",
              R"(, ["tensor_parallel", {"column": ["blocks.*.mlp.up", "blocks.*.mlp.gate"], )"
              R"("row": ["blocks.*.mlp.down"]}])"},
             {R"([["zero", 2], ["data", 2]])",
              R"(, ["fsdp", {}], ["checkpoint", ["blocks.*"]])"}}) {
      INFO(recipe << axes << more);
      const auto own_maxima_plan = plan_of(
          given, strategy(axes, "{" + recipe + R"(, "fp8_reduce_amax": false})", more), kFp8Rows);
      const auto shared_maxima_plan = plan_of(given, strategy(axes, "{" + recipe + "}", more),
                                              kFp8Rows);
      int maxima = 0;
      const graph::Arg max = std::string("max");
      const auto count = [&](Program& program) {
        for (const auto& section : program.sections) {
          for (const auto& i : section.instructions) {
            for (const auto& [name, arg] : i.args) {
              maxima += name == "op" && arg == max;
            }
          }
        }
      };
      const auto ranks = train(given, own_maxima_plan, count, {.clip_norm = 0.5}, 3);
      CHECK(maxima == 0);
      // Equals the program without the exchange of maxima, and differs from the one with it.
      CHECK(same(ranks, train(given, shared_maxima_plan, without_max, {.clip_norm = 0.5}, 3)));
      CHECK_FALSE(same(ranks, train(given, shared_maxima_plan, {}, {.clip_norm = 0.5}, 3)));
      CHECK((plan::parse(plan::print(own_maxima_plan)) == own_maxima_plan));
    }
  }
  // One rank has only its own maximum.
  const auto one = [&](const std::string& more) {
    return train(
        given,
        plan_of(given, strategy(kFp8One, R"({"fp8_recipe": "tensorwise")" + more + "}"), kFp8Rows));
  };
  CHECK(same(one(""), one(R"(, "fp8_reduce_amax": false)")));
}

TEST_CASE("unsupported options of fp8 are refused") {
  const auto given = built_in(kGpt, kFp8Rows);
  const auto refusal = [&](const std::string& text) {
    try {
      plan_of(given, text, kFp8Rows);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8": "e4m2"})")),
             Contains("fp8 must be one of e4m3, hybrid, but got \"e4m2\", did you mean \"e4m3\"?"));
  CHECK_THAT(
      refusal(strategy(kFp8One, R"({"fp8_recipe": "tensorwise", "fp8_amax_history_len": 2})")),
      Contains("fp8_amax_history_len requires the recipe delayed"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_recipe": "tensorwise", "fp8_interval": 2})")),
             Contains("fp8_interval requires the recipe delayed"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_interval": 0})")), Contains("from 1 to 65536"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_recipe": "blockwise", "fp8_reduce_amax": false})")),
             Contains("fp8_reduce_amax = false requires the recipe delayed"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_recipe": "rowwise", "fp8_reduce_amax": false})")),
             Contains("requires the recipe delayed or tensorwise, but fp8_recipe is rowwise"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_recipe": "rowwise", "fp8_block": 64})")),
             Contains("fp8_block requires the recipe blockwise"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"match": ["block.*"]})")), Contains("[fp8]"));
  CHECK_THAT(refusal(strategy(kFp8One, R"({"fp8_margin": -1})")), Contains("from 0 to 64"));
  CHECK_THAT(
      refusal(strategy(R"([["pipe", 2], ["data", 1]])", "{}", R"(, ["pipeline_parallel", {}])")),
      Contains("delayed scaling requires that all ranks have the same layers"));
}

}  // namespace perigee::parity
