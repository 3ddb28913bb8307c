// Losses that a model declares, and losses that are checked by number.
#include "tests/train/loss/losses.h"

using namespace perigee;
using namespace perigee::losses;

namespace {

Maker declared(const LossOf& loss, Reduction reduction) {
  return [loss, reduction] {
    auto family = mapped(loss);
    family.forward = [forward = family.forward, reduction](const Batch& batch) {
      auto result = forward(batch);
      result.reduction = reduction;
      return result;
    };
    return family;
  };
}

// The logarithm of a sample's largest element, written so that no proof finds the samples.
torch::Tensor hidden(const torch::Tensor& out, const Batch&) {
  const auto order = torch::arange(out.size(0));
  return (out.index({order}).pow(2).sum(1) + 1).log();
}

}  // namespace

TEST_CASE("a declared loss is trusted once two microbatches of the first step confirm it") {
  const LossOf mean = [](const auto& out, const auto& batch) { return hidden(out, batch).mean(); };
  const LossOf sum = [](const auto& out, const auto& batch) { return hidden(out, batch).sum(); };
  const LossOf max = [](const auto& out, const auto& batch) { return hidden(out, batch).max(); };
  const LossOf weighted = [](const torch::Tensor& out, const Batch& batch) {
    const auto kept = batch.at("kept");
    return (errors(out, batch) * kept).sum() / kept.index({torch::arange(out.size(0))}).sum();
  };
  CHECK_THROWS_WITH(run(declared(mean, Reduction::proven), 2), Catch::Contains("declare it"));
  const auto check = [](const LossOf& loss, Reduction reduction) {
    const auto family = declared(loss, reduction);
    const auto one = run(family, 8);
    check_equal(one, run(family, 2));
    check_equal(one, run(family, 2, R"([["parallel_mode", [["data", 2]]]])"));
  };
  check(mean, Reduction::mean);
  check(sum, Reduction::sum);
  check(weighted, Reduction::weighted);
  const auto wrong = [](const LossOf& loss, Reduction reduction, const std::string& message) {
    const auto family = declared(loss, reduction);
    CHECK_NOTHROW(run(family, 8));  // nothing is cut
    for (const std::string methods : {"", R"([["parallel_mode", [["data", 2]]], "fsdp"])"}) {
      CHECK_THROWS_WITH(run(family, 2, methods), Catch::Contains(message));
    }
  };
  wrong(mean, Reduction::sum, "a loss that is declared a sum over samples must be one, but");
  wrong(sum, Reduction::mean, "a loss that is declared a mean over samples must be one, but");
  wrong(max, Reduction::mean, "there is no proof after aten::index.Tensor in scope");
}

TEST_CASE("a loss with constants that depend on the number of samples is checked by number") {
  const LossOf ones = [](const torch::Tensor& out, const Batch& batch) {
    const auto mask = torch::ones_like(out);
    return (errors(out, batch) * mask).sum() / mask.sum();
  };
  const LossOf places = [](const torch::Tensor& out, const Batch& batch) {
    const auto place = torch::arange(1, out.size(0) + 1, torch::kDouble);
    return errors(out, batch).mean(1).dot(place) / out.size(0);
  };
  const LossOf offset = [](const torch::Tensor& out, const Batch& batch) {
    return errors(out, batch).mean() + out.size(0) * 0.1;
  };
  for (const auto& loss : {ones, places, offset}) {
    const auto family = [&] { return mapped(loss); };
    CHECK_NOTHROW(run(family, 8));
    for (const int64_t micro : {1, 2}) {
      CHECK_THROWS_WITH(run(family, micro), Catch::Contains("a loss that is taken for a ") &&
                                                Catch::Contains("declare what it is"));
    }
  }
  const auto family = declared(ones, Reduction::mean);
  check_equal(run(family, 8), run(family, 2));
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // the same for each sample
    return (errors(out, batch) * torch::arange(4, torch::kDouble).expand_as(out)).mean();
  });
}

TEST_CASE("a declared loss is checked in a pipeline, too") {
  const auto family = [](Reduction reduction) {
    return [reduction] {
      auto made = classifier();
      made.forward = [forward = made.forward, reduction](const Batch& batch) {
        auto result = forward(batch);
        result.loss = result.loss +
                      0 * std::get<0>(batch.at("label").to(torch::kDouble).sort(0)).sum();
        result.reduction = reduction;
        return result;
      };
      return made;
    };
  };
  for (const std::string schedule : {"1f1b", "interleaved", "zbv"}) {
    INFO(schedule);
    const auto pipeline = fmt::format(
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {{"schedule": "{}"{}}}]])",
        schedule,
        schedule == "1f1b" ? R"(, "starts": ["layers.1"])"
                           : R"(, "starts": ["layers.0", "layers.1", "head"])");
    check_equal(run(family(Reduction::mean), 8), run(family(Reduction::mean), 2, pipeline));
    CHECK_THROWS_WITH(run(family(Reduction::sum), 2, pipeline),
                      Catch::Contains("declared a sum over samples must be one"));
  }
}
