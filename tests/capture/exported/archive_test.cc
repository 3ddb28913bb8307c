// Archives that cannot be models: one clear error each.
#include <caffe2/serialize/inline_container.h>

#include <filesystem>
#include <fstream>

#include "tests/capture/exported/support.h"
#include "tests/support/temporary_folder.h"

using Catch::Matchers::Contains;
using Catch::Matchers::EndsWith;
using nlohmann::json;

namespace perigee::test {
namespace {

// Returns the error of loading the archive.
std::string refusal(const ArchiveMaker& archive) {
  const Folder folder;
  const auto file = archive.write(folder.at("m.pt2"));
  return error_of([&] { load_exported(file); });
}

// Returns the error of a graph with one more node.
std::string refusal_of(const json& node) {
  ArchiveMaker archive;
  archive.nodes().push_back(node);
  return refusal(archive);
}

}  // namespace

TEST_CASE("the archive of the tests is a model") {
  CHECK(refusal(ArchiveMaker()) == "nothing was thrown");
}

TEST_CASE("a file that is no whole archive of torch.export is an error that names it") {
  const Folder folder;
  const auto error = [](const std::string& file) { return error_of([&] { load_exported(file); }); };
  CHECK_THAT(error(folder.at("none.pt2")), Contains("none.pt2") && Contains("archive"));
  CHECK_THAT(error(folder.add("text.pt2", "not a zip")),
             Contains("text.pt2\" must be a whole archive of torch.export, but is cut short") &&
                 Contains("runtime/export.py") && !Contains("LibTorch"));
  CHECK_THAT(error(folder.path()), Contains("but is a folder"));
  const auto foreign = folder.at("foreign.pt2");
  {
    caffe2::serialize::PyTorchStreamWriter writer(foreign);
    writer.writeRecord("notes", "text", 4);
    writer.writeEndOfFile();
  }
  CHECK_THAT(error(foreign), Contains("foreign.pt2") && Contains("holds no models/NAME.json"));
  const auto whole = ArchiveMaker().write(folder.at("whole.pt2"));
  const auto bytes = std::filesystem::file_size(whole);
  for (const auto part : {bytes / 4, bytes / 2, bytes - 10}) {
    INFO(part);
    const auto cut = folder.at("cut.pt2");
    std::filesystem::copy_file(whole, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, part);
    CHECK_THAT(error(cut), Contains("cut.pt2") && Contains("whole archive"));
  }
}

TEST_CASE("a record that is compressed or larger than the archive is refused before it is read") {
  const Folder folder;
  const auto whole = [&] {
    std::ifstream file(ArchiveMaker().write(folder.at("m.pt2")), std::ios::binary);
    return std::string(std::istreambuf_iterator(file), {});
  }();
  // Returns the error of the archive where its directory's first record has `bytes` at `at`.
  const auto error = [&](size_t at, std::string_view bytes) {
    auto changed = whole;
    changed.replace(changed.find("PK\1\2") + at, bytes.size(), bytes);
    return error_of([&] { load_exported(folder.add("changed.pt2", changed)); });
  };
  CHECK_THAT(
      error(10, std::string_view("\10\0", 2)),
      Contains("changed.pt2\" must be stored as PyTorch stores them") && EndsWith("is compressed"));
  CHECK_THAT(error(24, "\xfe\xff\xff\xff"), EndsWith("is larger than the file"));
  CHECK_THAT(error(24, "\xff\xff\xff\xff"), EndsWith("is larger than the file"));
}

TEST_CASE("a size that is no integer of 64 bits is refused") {
  for (const json& size : {json(7e30), json(2.0), json(UINT64_MAX), json("2")}) {
    ArchiveMaker archive;
    archive.graph()["tensor_values"]["y"]["sizes"][0] = {{"as_int", size}};
    CHECK_THAT(refusal(archive), EndsWith("are integers, but one is " + size.dump()));
  }
}

TEST_CASE("an archive of another schema is an error that names both versions") {
  for (const auto& [major, minor] : {std::pair{7, 3}, {9, 0}, {8, 999}}) {
    ArchiveMaker archive;
    archive.program["schema_version"] = {{"major", major}, {"minor", minor}};
    CHECK_THAT(refusal(archive), Contains("has " + std::to_string(major) + "." +
                                          std::to_string(minor) + " of PyTorch 2.11.0"));
  }
}

TEST_CASE("an op that is not LibTorch's is refused by name") {
  CHECK_THAT(refusal_of(node("torch.ops.transformers.grouped_mm_fallback.default", {}, {"z"})),
             Contains("torch.ops.transformers.grouped_mm_fallback.default is of another library") &&
                 Contains("eager"));
  CHECK_THAT(refusal_of(node("torch.ops.aten.no_such_op.default", {}, {"z"})),
             Contains("it has no torch.ops.aten.no_such_op.default"));
  CHECK_THAT(refusal_of(node("os.system", {}, {"z"})), Contains("but got os.system"));
}

TEST_CASE("an op that accesses files or writes to its caller's tensors is refused") {
  CHECK_THAT(refusal_of(node("torch.ops.aten.from_file.default",
                             {{"filename", {{"as_string", "/etc/passwd"}}}}, {"z"})),
             Contains("from_file.default takes \"filename\""));
  CHECK_THAT(refusal_of(node("torch.ops.aten.add.out", {{"self", tensor("x")}}, {"z"})),
             Contains("add.out takes \"out\""));
}

TEST_CASE("control flow is refused by name") {
  for (const std::string op : {"cond", "map_impl", "scan", "while_loop"}) {
    CHECK_THAT(refusal_of(node("torch.ops.higher_order." + op, {}, {"z"})),
               Contains("torch's " + op));
  }
}

TEST_CASE("a dynamic dim other than the samples is refused") {
  ArchiveMaker second;
  second.value("y", {-1, -1});
  CHECK_THAT(refusal(second), Contains("dim 1 of \"y\"") && Contains("for dim 0 alone"));
  ArchiveMaker other;
  other.graph()["tensor_values"]["y"]["sizes"][0]["as_expr"]["expr_str"] = "Symbol('s1')";
  CHECK_THAT(refusal(other), Contains("dim 0 of \"y\" differs"));
  other.graph()["tensor_values"]["y"]["sizes"][0]["as_expr"]["expr_str"] =
      "Mul(Integer(2), Symbol('s0'))";
  CHECK_THAT(refusal(other), Contains("dim 0 of \"y\" differs"));
}

TEST_CASE("weights are those of the graph") {
  ArchiveMaker missing;
  missing.weights.erase("layer.bias");
  CHECK_THAT(refusal(missing), Contains("not the parameter \"layer.bias\""));
  ArchiveMaker shape;
  shape.weights["layer.bias"] = at::zeros({3}, at::kDouble).requires_grad_();
  CHECK_THAT(refusal(shape), Contains("\"layer.bias\" is Double [2] there and Double [3]"));
  ArchiveMaker type;
  type.weights["layer.bias"] = at::zeros({2}, at::kFloat).requires_grad_();
  CHECK_THAT(refusal(type), Contains("\"layer.bias\" is Double [2] there and Float [2]"));
}

TEST_CASE("a tensor that is larger than its bytes is an error") {
  // The number of bytes of the last two is no 64-bit number.
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{3}, {int64_t{1} << 61}, {int64_t{1} << 31, int64_t{1} << 31}}) {
    ArchiveMaker archive;
    archive.stated_sizes["layer.bias"] = sizes;
    CHECK_THAT(refusal(archive), Contains("\"layer.bias\"") && Contains("has 16 of them"));
  }
}

TEST_CASE("a text that is nested too deep is an error") {
  ArchiveMaker archive;
  json deep = json::array();
  for (int k = 0; k < 300; ++k) deep = json::array({deep});
  archive.program["more"] = deep;
  CHECK_THAT(refusal(archive), Contains("nested at most 200 deep"));
}

TEST_CASE("a graph that breaks the schema is an error") {
  ArchiveMaker unknown;
  unknown.nodes()[1]["inputs"][0]["arg"] = tensor("nowhere");
  CHECK_THAT(refusal(unknown), Contains("mse_loss.default uses \"nowhere\""));
  ArchiveMaker kind;
  kind.nodes()[1]["inputs"][0]["arg"] = {{"as_riddle", 1}};
  CHECK_THAT(refusal(kind), Contains("\"as_riddle\""));
  ArchiveMaker parts;
  parts.nodes()[1].erase("outputs");
  CHECK_THAT(refusal(parts), Contains("the parts of its schema"));
  ArchiveMaker object;
  object.signature()["input_specs"].push_back({{"custom_obj", {{"custom_obj_name", "o"}}}});
  CHECK_THAT(refusal(object), Contains("one is a custom_obj"));
}

}  // namespace perigee::test
