// Exports with a fixed number of samples: they hold for any number where that is proven.
#include "capture/exported/samples/generalise.h"

#include <algorithm>

#include "tests/capture/exported/support.h"
#include "tests/capture/support.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using nlohmann::json;

namespace perigee::test {
namespace {

constexpr int64_t kSamples = 4;
const std::string kNone = "nothing was thrown";  // error_of without an error

json ints(const std::vector<int64_t>& values) { return {{"as_ints", values}}; }

using Calls = std::vector<std::pair<json, std::vector<int64_t>>>;  // with their results' sizes

// An export of 4 samples: forward(x [4, 4], y [4, 2]) with these calls between the layer's result
// "h" [4, 2] and the loss of "z" [4, 2].
ArchiveMaker export_of(const Calls& between, int64_t reduction = at::Reduction::Mean) {
  ArchiveMaker archive;
  archive.value("x", {kSamples, 4});
  archive.value("y", {kSamples, 2});
  archive.value("h", {kSamples, 2});
  archive.value("loss", {});
  auto& nodes = archive.nodes();
  for (size_t i = 0; i < between.size(); ++i) {
    const auto& [made, sizes] = between[i];
    archive.value(made["outputs"][0]["as_tensor"]["name"], sizes);
    nodes.insert(nodes.begin() + 1 + static_cast<int64_t>(i), made);
  }
  if (!between.empty()) nodes.back()["inputs"][0]["arg"] = tensor("z");
  nodes.back()["inputs"].push_back(
      json{{"name", "reduction"}, {"arg", json{{"as_int", reduction}}}, {"kind", 1}});
  return archive;
}

Model load_between(const Calls& between, int64_t reduction = at::Reduction::Mean) {
  return load(export_of(between, reduction));
}

void append(ArchiveMaker& archive, const Calls& calls) {
  for (const auto& [made, sizes] : calls) {
    archive.value(made["outputs"][0]["as_tensor"]["name"], sizes);
    archive.nodes().push_back(made);
  }
}

// With these calls after the loss, which the last call replaces by "l".
Model load_with_loss(const Calls& calls) {
  auto archive = export_of({});
  append(archive, calls);
  archive.results({{"", "l"}});
  return load(archive);
}

// With a buffer "m" [2], to which the forward pass writes the calls' "n" [2].
Model load_with_buffer(const Calls& calls) {
  auto archive = export_of({});
  archive.value("m", {2});
  archive.weights["mean"] = at::zeros({2}, at::kDouble);
  json input, change;
  input["buffer"]["arg"]["name"] = "m";
  input["buffer"]["buffer_name"] = "mean";
  input["buffer"]["persistent"] = true;
  archive.signature()["input_specs"].push_back(input);
  append(archive, calls);
  change["buffer_mutation"]["arg"]["name"] = "n";
  change["buffer_mutation"]["buffer_name"] = "mean";
  archive.signature()["output_specs"].push_back(change);
  return load(archive);
}

// With the calls' "n" as a result.
Model load_with_result(const Calls& calls) {
  auto archive = export_of({});
  append(archive, calls);
  archive.results({{"loss", "loss"}, {"n", "n"}});
  return load(archive);
}

json with_number(const std::string& op, const std::string& self, const json& number,
                 const std::string& result) {
  return call(op, {{"self", tensor(self)}, {"other", number}}, result);
}

const Calls kSums = {
    {call("sum.dim_IntList", {{"self", tensor("h")}, {"dim", ints({0})}}, "t"), {2}}};

Calls operator+(Calls calls, const Calls& more) {
  calls.insert(calls.end(), more.begin(), more.end());
  return calls;
}

// Returns the error of eight samples, or kNone where their loss is the mean (or sum) of the export's
// losses of both halves, and the captured graph has the eager gradients.
std::string difference_of_twice(const Model& model, bool sum = false) {
  const auto batch = samples(2 * kSamples);
  return error_of([&] {
    check_parity(*model.module, batch, model.forward);
    double halves = 0;
    for (const int64_t begin : {int64_t{0}, kSamples}) {
      Batch half;
      for (const auto& [name, all] : batch) half[name] = all.narrow(0, begin, kSamples);
      halves += model.forward(half).loss.item<double>();
    }
    CHECK(model.forward(batch).loss.item<double>() == Approx(sum ? halves : halves / 2));
  });
}

}  // namespace

TEST_CASE("a fixed number of samples is replaced where samples are followed") {
  const json h = tensor("h");
  SECTION("nothing to replace, a mean and a sum") {
    CHECK(difference_of_twice(load_between({})) == kNone);
    CHECK(difference_of_twice(load_between({}, at::Reduction::Sum), true) == kNone);
  }
  SECTION("samples merged with a dim and split again") {
    CHECK(difference_of_twice(load_between(
              {{call("view.default", {{"self", h}, {"size", ints({8})}}, "a"), {8}},
               {call("reshape.default", {{"self", tensor("a")}, {"shape", ints({4, 2})}}, "z"),
                {4, 2}}})) == kNone);
  }
  SECTION("a new tensor and an expanded one") {
    CHECK(
        difference_of_twice(load_between(
            {{call("ones.default", {{"size", ints({4, 2})}}, "a"), {4, 2}},
             {call("expand.default", {{"self", tensor("b")}, {"size", ints({4, 2})}}, "d"), {4, 2}},
             {call("mul.Tensor", {{"self", tensor("a")}, {"other", tensor("d")}}, "c"), {4, 2}},
             {call("add.Tensor", {{"self", h}, {"other", tensor("c")}}, "z"), {4, 2}}})) == kNone);
  }
  SECTION("a size that is a number of the model, though it is the number of samples") {
    // [2] to [4, 2] by the model's own 4, summed over it.
    CHECK(
        difference_of_twice(load_between(
            {{call("expand.default", {{"self", tensor("b")}, {"size", ints({4, 2})}}, "a"), {4, 2}},
             {call("sum.dim_IntList", {{"self", tensor("a")}, {"dim", ints({0})}}, "c"), {2}},
             {call("add.Tensor", {{"self", h}, {"other", tensor("c")}}, "z"), {4, 2}}})) == kNone);
  }
}

TEST_CASE("an element of each sample is chosen by its position") {
  // h[arange(4), 1] as in a model that takes the last token of each sample.
  const json h = tensor("h");
  const auto indices = json{
      {"as_optional_tensors",
       {json{{"as_tensor", {{"name", "a"}}}}, json{{"as_tensor", {{"name", "k"}}}}}}};
  CHECK(difference_of_twice(load_between(
            {{call("arange.default", {{"end", {{"as_int", 4}}}}, "a"), {4}},
             {call("argmax.default", {{"self", h}, {"dim", {{"as_int", 1}}}}, "k"), {4}},
             {call("index.Tensor", {{"self", h}, {"indices", indices}}, "c"), {4}},
             {call("view.default", {{"self", tensor("c")}, {"size", ints({4, 1})}}, "d"), {4, 1}},
             {call("add.Tensor", {{"self", h}, {"other", tensor("d")}}, "z"), {4, 2}}})) == kNone);
}

TEST_CASE("numbers of the model are kept beside a fixed number of samples") {
  const json tenth{{"as_float", 0.1}}, four{{"as_int", 4}};
  SECTION("weights of a mean loss") {
    CHECK(difference_of_twice(
              load_with_loss({{with_number("mul.Tensor", "loss", {{"as_float", 4.0}}, "a"), {}},
                              {with_number("mul.Tensor", "a", {{"as_int", 3}}, "c"), {}},
                              {with_number("div.Tensor", "c", four, "l"), {}}})) == kNone);
  }
  SECTION("a running mean and a running sum") {
    const json mean = call("mean.dim", {{"self", tensor("h")}, {"dim", ints({0})}}, "t");
    const json next = call("add.Tensor", {{"self", tensor("a")}, {"other", tensor("c")}}, "n");
    for (const auto& calls : {Calls{{mean, {2}}}, kSums}) {
      CHECK(difference_of_twice(load_with_buffer(
                calls + Calls{{with_number("mul.Tensor", "t", tenth, "a"), {2}},
                              {with_number("mul.Tensor", "m", {{"as_float", 0.9}}, "c"), {2}},
                              {next, {2}}})) == kNone);
    }
    CHECK(difference_of_twice(load_with_buffer(
              {{with_number("add.Tensor", "m", {{"as_int", 1}}, "n"), {2}}})) == kNone);
  }
  SECTION("results of each sample") {
    CHECK(difference_of_twice(
              load_with_result({{with_number("div.Tensor", "h", four, "n"), {4, 2}}})) == kNone);
  }
}

// Checks that a model holds for four samples alone, for a reason with these words.
void check_fixed(const Model& model, const std::string& reason) {
  CHECK(error_of([&] { check_parity(*model.module, samples(4), model.forward); }) == kNone);
  CHECK_THAT(difference_of_twice(model), Contains("for 4 samples alone") &&
                                             Contains("dynamic_shapes") &&
                                             Contains("is not proven: ") && Contains(reason));
}

TEST_CASE("a whole number that is the number of samples fixes it") {
  const json four{{"as_int", 4}};
  const std::string multiplies = "which multiplies a value of all samples by ";
  const std::string divides = "which divides a sum over samples by 4";
  SECTION("a factor of a mean loss") {
    check_fixed(load_with_loss({{with_number("mul.Tensor", "loss", four, "l"), {}}}),
                multiplies + "4");
    check_fixed(load_with_loss({{with_number("mul.Tensor", "loss", {{"as_int", 16}}, "l"), {}}}),
                multiplies + "16");
  }
  SECTION("a divisor of a buffer's new value") {
    check_fixed(load_with_buffer(kSums + Calls{{with_number("div.Tensor", "t", four, "n"), {2}}}),
                divides);
  }
  SECTION("a divisor of a result") {
    check_fixed(load_with_result(kSums + Calls{{with_number("div.Tensor", "t", four, "n"), {2}}}),
                divides);
  }
  SECTION("a buffer that counts samples") {
    check_fixed(load_with_buffer({{with_number("add.Tensor", "m", four, "n"), {2}}}),
                "which adds 4, which may be the number of samples");
  }
}

TEST_CASE("a result that depends on the samples' positions fixes their number") {
  check_fixed(
      load_with_result(
          {{call("arange.default", {{"end", {{"as_int", 4}}}}, "a"), {4}},
           {call("view.default", {{"self", tensor("a")}, {"size", ints({4, 1})}}, "c"), {4, 1}},
           {call("add.Tensor", {{"self", tensor("h")}, {"other", tensor("c")}}, "n"), {4, 2}}}),
      "position");
}

TEST_CASE("a fixed number of samples stays where the proof ends, which the error names") {
  const json h = tensor("h");
  const auto& error = check_fixed;
  SECTION("a sum that is divided by the number of samples as a constant") {
    error(
        load_between({{call("div.Tensor", {{"self", h}, {"other", {{"as_int", 4}}}}, "z"), {4, 2}}},
                     at::Reduction::Sum),
        "a factor or divisor that may be their number");
  }
  SECTION("samples that are told by their position") {
    error(load_between(
              {{call("arange.default", {{"end", {{"as_int", 4}}}}, "a"), {4}},
               {call("view.default", {{"self", tensor("a")}, {"size", ints({4, 1})}}, "c"), {4, 1}},
               {call("add.Tensor", {{"self", h}, {"other", tensor("c")}}, "z"), {4, 2}}}),
          "position");
  }
  SECTION("a reshape of a tensor without elements") {
    const Inputs none = {{"self", h},
                         {"dim", {{"as_int", 1}}},
                         {"start", {{"as_int", 0}}},
                         {"end", {{"as_int", 0}}}};
    error(load_between(
              {{call("slice.Tensor", none, "a"), {4, 0}},
               {call("reshape.default", {{"self", tensor("a")}, {"shape", ints({0, 3})}}, "d"),
                {0, 3}},
               {call("sum.default", {{"self", tensor("d")}}, "c"), {}},
               {call("add.Tensor", {{"self", h}, {"other", tensor("c")}}, "z"), {4, 2}}}),
          "reshape");
  }
  SECTION("no loss") {
    auto archive = export_of({});
    archive.results({{"h", "h"}, {"losses", "loss"}});
    const auto model = load(archive);
    CHECK_THAT(error_of([&] { model.forward(samples(8)); }), Contains("gives no loss"));
  }
  SECTION("samples that are reduced to their largest") {
    error(load_between(
              {{call("amax.default",
                     {{"self", h}, {"dim", ints({0})}, {"keepdim", {{"as_bool", true}}}}, "a"),
                {1, 2}},
               {call("add.Tensor", {{"self", h}, {"other", tensor("a")}}, "z"), {4, 2}}}),
          "amax");
  }
  SECTION("a sum over samples of a constant") {
    error(load_between(
              {{call("ones.default", {{"size", ints({4, 2})}}, "a"), {4, 2}},
               {call("mul.Tensor", {{"self", tensor("a")}, {"other", tensor("b")}}, "d"), {4, 2}},
               {call("add.Tensor", {{"self", h}, {"other", tensor("d")}}, "e"), {4, 2}},
               {call("sum.default", {{"self", tensor("a")}}, "c"), {}},
               {call("mul.Tensor", {{"self", tensor("e")}, {"other", tensor("c")}}, "z"), {4, 2}}}),
          "sum");
  }
}

}  // namespace perigee::test
