// Samples of data.tensors.
#include <fmt/format.h>

#include "tests/support/torch_test.h"
// Torch first.
#include <filesystem>
#include <set>

#include "checkpoint/safetensors.h"
#include "tests/data/support.h"

using namespace perigee;
using namespace perigee::data;
using test::error_of;
using test::Folder;

TEST_CASE("an input without a batch dim is read from one file, or generated once") {
  Folder folder;
  const std::vector<double> x{1, 2, 3, 4, 5, 6}, table{7, 8, 9, 10};
  const auto bytes = [](const std::vector<double>& v) { return std::as_bytes(std::span(v)); };
  const checkpoint::TensorBytes rows{"x", graph::DType::float64, {3, 2}, bytes(x)};
  const checkpoint::TensorBytes same{"table", graph::DType::float64, {2, 2}, bytes(table)};
  checkpoint::write_safetensors(folder.at("a.safetensors"),
                                std::vector<checkpoint::TensorBytes>{rows, same});
  checkpoint::write_safetensors(folder.at("b.safetensors"),
                                std::vector<checkpoint::TensorBytes>{rows});
  const std::string keys = "tensors = [\"*.safetensors\"]\nvalidation = 0\nbatched = [\"x\"]";
  const auto job = job_of(folder, keys, "mlp", "[batch]\nglobal = 6");
  const auto data = data::open_data(job);
  for (const auto& range : {Range{0, 6}, Range{4, 1}}) {
    const auto batch = data.training->at(1, range);
    CHECK(batch.at("x").size(0) == range.length);
    CHECK(batch.at("table").equal(torch::tensor(table, torch::kDouble).reshape({2, 2})));
  }
  checkpoint::write_safetensors(folder.at("b.safetensors"),
                                std::vector<checkpoint::TensorBytes>{same});
  CHECK_THAT(
      error_of([&] { data::open_data(job); }),
      Catch::Contains("must be in one file only, but table is in " + folder.at("b.safetensors")));
  std::filesystem::remove(folder.at("b.safetensors"));
  CHECK(data::open_data(job_of(folder, keys, "mlp", "[batch]\nglobal = 3"))
            .training->at(1, {0, 3})
            .size() == 2);

  // A synthetic one is the same in all steps and ranges.
  const auto synthetic = data::open_data(job_of(folder, "synthetic = true\nbatched = [\"x\"]",
                                                "mlp", "inputs = 3\noutputs = 2\nloss = \"mse\""));
  const auto first = synthetic.training->at(1, {0, 4}), later = synthetic.training->at(7, {2, 1});
  CHECK(first.at("x").sizes() == at::IntArrayRef({4, 3}));
  CHECK(first.at("y").sizes() == at::IntArrayRef({2}));
  CHECK(first.at("y").equal(later.at("y")));
  CHECK(!first.at("x")[0].equal(later.at("x")[0]));
}

TEST_CASE("a token id of a tensor that the model does not take is named with its sample") {
  Folder folder;
  std::vector<int64_t> ids{1, 2, 3, 4, 5, 6};
  const auto path = folder.at("a.safetensors");
  const auto read = [&](int64_t below) {
    checkpoint::write_safetensors(
        path, std::vector<checkpoint::TensorBytes>{
                  {"tokens", graph::DType::int64, {3, 2}, std::as_bytes(std::span(ids))}});
    const auto job = job_of(folder,
                            "tensors = \"a.safetensors\"\nsampler = \"sequential\"\n"
                            "validation = 0",
                            "gpt", "[batch]\nglobal = 3");
    return error_of([&] {
      data::open_data(job, {}, {.below = below, .why = "rows"}).training->at(1, {0, 3});
    });
  };
  CHECK(read(7) == "nothing was thrown");
  CHECK(read(0) == "nothing was thrown");
  CHECK(
      read(6) ==
      fmt::format("[data] token ids must be at least 0 and below rows = 6, but sample 2 of {} has "
                  "6",
                  path));
  ids[2] = -1;
  CHECK_THAT(read(7), Catch::EndsWith("but sample 1 of " + path + " has -1"));
}

TEST_CASE("rows of tensors are samples, over all files") {
  Folder folder;
  const auto write = [&](const std::string& name, int64_t first, int64_t count) {
    std::vector<double> x;
    std::vector<int64_t> y;
    for (int64_t i = first; i < first + count; ++i) {
      x.insert(x.end(), {double(i), double(-i)});
      y.push_back(i);
    }
    checkpoint::write_safetensors(
        folder.at(name), std::vector<checkpoint::TensorBytes>{
                             {"x", graph::DType::float64, {count, 2}, std::as_bytes(std::span(x))},
                             {"y", graph::DType::int64, {count}, std::as_bytes(std::span(y))}});
  };
  write("a.safetensors", 0, 5);
  write("b.safetensors", 5, 0);
  write("c.safetensors", 5, 7);
  const auto job = job_of(folder, "tensors = [\"*.safetensors\"]\nvalidation = 0.34", "mlp",
                          "[batch]\nglobal = 4");
  const auto data = data::open_data(job);
  CHECK(data.vocab == 0);
  std::set<int64_t> seen;
  for (int64_t step = 1; step <= 2; ++step) {
    const auto batch = data.training->at(step, {0, 4});
    CHECK(batch.at("x").dtype() == at::kDouble);
    CHECK(batch.at("x").select(1, 0).equal(batch.at("y").to(at::kDouble)));
    CHECK(batch.at("x").select(1, 1).equal(-batch.at("y").to(at::kDouble)));
    for (const auto y : list(batch.at("y"))) seen.insert(y);
    CHECK(list(batch.at("y")) == data.training->indices(step, {0, 4}));
  }
  CHECK(seen == std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});  // 4 of 12 are held out
  CHECK(is_independent_of_ranges(*data.training, 4));
  CHECK(data.validation.batches == 1);
  CHECK(list(data.validation.data->at(1, {0, 4}).at("y")) == std::vector<int64_t>{8, 9, 10, 11});

  const auto message = [&] { return error_of([&] { data::open_data(job); }); };
  const std::vector<float> f(6);
  const auto bytes = std::as_bytes(std::span(f));
  const auto path = folder.at("c.safetensors");
  const auto replace = [&](std::vector<checkpoint::TensorBytes> tensors) {
    checkpoint::write_safetensors(path, tensors);
  };
  replace({{"x", graph::DType::float32, {3, 2}, bytes}});
  CHECK(message() == fmt::format("[data] tensor x must have one dtype and sample shape in all "
                                 "files, but {} has another",
                                 path));
  replace({{"z", graph::DType::float32, {3, 2}, bytes}});
  CHECK(message() == fmt::format("[data] all files must hold the same tensors, but only {} and "
                                 "later have z",
                                 path));
  replace({{"x", graph::DType::float64, {1, 2}, bytes.subspan(0, 16)}});
  CHECK(message() ==
        fmt::format("[data] all files must hold the same tensors, but {} has no y", path));
  replace({{"x", graph::DType::float64, {1, 2}, bytes.subspan(0, 16)},
           {"y", graph::DType::int64, {}, bytes.subspan(16)}});
  CHECK(message() == fmt::format("[data] all tensors of {} must have as many samples (dim 0), but "
                                 "y has another count than x",
                                 path));
  replace({});
  CHECK(message() ==
        fmt::format("[data] {} must hold the model's inputs as tensors, but it holds none", path));
  folder.add("d.npy", "\x93NUMPY");
  CHECK_THAT(error_of([&] { job_of(folder, "tensors = [\"*.npy\"]", "mlp"); }),
             Catch::Contains("data.tensors reads safetensors, not NumPy's files, but got ") &&
                 Catch::Contains("safetensors.numpy.save_file({\"INPUT\": numpy.load(FILE)}"));
}
