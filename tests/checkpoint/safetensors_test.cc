#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <csignal>

#include "tests/support/golden.h"
#include "tests/support/temporary_folder.h"

using namespace perigee;
using namespace perigee::checkpoint;
using test::error_of;
using test::Folder;

namespace {

// Returns a file of the header and `bytes` bytes of data.
std::string file_of(const std::string& header, size_t bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header +
         std::string(bytes, 'x');
}

constexpr auto kTwo =
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[2,6]}}";

}  // namespace

TEST_CASE("tensors of every dtype round trip") {
  Folder folder;
  const auto path = folder.at("t.safetensors");
  std::vector<std::string> data;
  std::vector<checkpoint::TensorBytes> tensors;
  for (int i = 0; i <= static_cast<int>(graph::DType::complex128); ++i) {
    const auto dtype = static_cast<graph::DType>(i);
    data.emplace_back(6 * graph::size_of(dtype), static_cast<char>('a' + i));
  }
  for (int i = 0; i <= static_cast<int>(graph::DType::complex128); ++i) {
    const auto dtype = static_cast<graph::DType>(i);
    tensors.push_back(
        {fmt::format("blocks.{}.\"wé\"", i), dtype, {2, 3, 1}, std::as_bytes(std::span(data[i]))});
  }
  tensors.push_back({"empty", graph::DType::float32, {0, 4}, {}});
  const auto checksum = checkpoint::write_safetensors(path, tensors, {{"format", "pt"}, {"x", ""}});
  const checkpoint::SafetensorsFile file(path);
  CHECK(file.checksum() == checksum);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}, {"x", ""}});
  REQUIRE(file.tensors().size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto &got = file.tensors()[i], &want = tensors[i];
    CHECK(got.name == want.name);
    CHECK(got.dtype == want.dtype);
    CHECK(got.shape == want.shape);
    CHECK(std::equal(got.bytes.begin(), got.bytes.end(), want.bytes.begin(), want.bytes.end()));
    CHECK(file.find(want.name) == &got);
  }
  CHECK(file.find("none") == nullptr);
}

TEST_CASE("a written file has the bytes of the safetensors format") {
  Folder folder;
  const auto path = folder.at("t.safetensors");
  const std::string two = "xx", four = "xxxx";
  checkpoint::write_safetensors(
      path, std::vector<checkpoint::TensorBytes>{
                {"a", graph::DType::uint8, {2}, std::as_bytes(std::span(two))},
                {"b", graph::DType::float32, {}, std::as_bytes(std::span(four))}});
  auto header = std::string(kTwo);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  CHECK(test::read_text(path) == file_of(header, 6));
  checkpoint::write_safetensors(path, std::vector<checkpoint::TensorBytes>{});
  CHECK(test::read_text(path) == file_of("{}      ", 0));
  CHECK(checkpoint::SafetensorsFile(path).tensors().empty());
}

TEST_CASE("the checksum changes with one bit") {
  Folder folder;
  const auto path = folder.add("t.safetensors", file_of(kTwo, 6));
  auto text = test::read_text(path);
  const auto before = checkpoint::SafetensorsFile(path).checksum();
  text.back() ^= 1;
  folder.add("t.safetensors", text);
  CHECK(checkpoint::SafetensorsFile(path).checksum() != before);
}

TEST_CASE("a file truncated at any byte is refused") {
  Folder folder;
  const auto whole = file_of(kTwo, 6);
  for (size_t n = 0; n < whole.size(); ++n) {
    const auto path = folder.add("t.safetensors", whole.substr(0, n));
    INFO(n);
    CHECK_THAT(error_of([&] { checkpoint::SafetensorsFile{path}; }),
               Catch::StartsWith("[file] " + path + " must be a whole safetensors file, but ") &&
                   Catch::EndsWith(": it is damaged or cut short"));
  }
}

TEST_CASE("a header that violates the format is refused") {
  Folder folder;
  const auto why = [&](const std::string& header, size_t bytes) {
    const auto path = folder.add("t.safetensors", file_of(header, bytes));
    auto message = error_of([&] { checkpoint::SafetensorsFile{path}; });
    const auto start = "[file] " + path + " must be a whole safetensors file, but ";
    if (message.starts_with(start)) message.erase(0, start.size());
    return message;
  };
  const std::string end = ": it is damaged or cut short";
  const auto entry = [](const std::string& dtype, const std::string& shape, const std::string& at) {
    return fmt::format("{{\"a\":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}}}", dtype,
                       shape, at);
  };
  CHECK(why(kTwo, 6) == "nothing was thrown");
  CHECK(why("[]", 0) == "its header is no JSON object" + end);
  CHECK(why("{\"a\":", 0) == "its header is no JSON object" + end);
  CHECK(why(kTwo, 7) == "1 bytes belong to no tensor" + end);
  CHECK(why(entry("U8", "[2]", "[1,3]"), 3) == "its tensors do not lie one after the other" + end);
  CHECK(why(entry("Q4", "[2]", "[0,2]"), 2) == "tensor a has the unknown dtype Q4" + end);
  const auto not_whole = "its header has a size or offset that is no whole number" + end;
  CHECK(why(entry("U8", "[-2]", "[0,2]"), 2) == not_whole);
  CHECK(why(entry("U8", "[2.5]", "[0,2]"), 2) == not_whole);
  CHECK(why(entry("U8", "[\"2\"]", "[0,2]"), 2) == not_whole);
  CHECK(why(entry("U8", "[2]", "[0,2.5]"), 2) == not_whole);
  CHECK(why(entry("F32", "[4611686018427387904]", "[0,0]"), 0) ==
        "tensor a has an impossible shape" + end);
  CHECK(why(entry("F32", "[0, 4611686018427387904, 4]", "[0,0]"), 0) ==
        "tensor a has an impossible shape" + end);
  CHECK(why(entry("U8", "[3]", "[0,2]"), 2) == "tensor a lies outside of it" + end);
  CHECK(why(entry("U8", "[2]", "[2,0]"), 2) == "tensor a lies outside of it" + end);
  CHECK_THAT(why("{\"a\":{}}", 0), Catch::StartsWith("its header does not fit the format"));
  CHECK_THAT(why("{\"a\":1}", 0), Catch::StartsWith("its header does not fit the format"));
  CHECK_THAT(why("{\"__metadata__\":{\"a\":1}}", 0),
             Catch::StartsWith("its header does not fit the format"));
  CHECK(
      error_of([&] { checkpoint::SafetensorsFile{folder.at("none")}; }) ==
      fmt::format("[file] {} must be readable, but: No such file or directory", folder.at("none")));
  CHECK(error_of([&] { checkpoint::SafetensorsFile{folder.path()}; }) ==
        fmt::format("[file] {} must be a file, but it is not", folder.path()));
}

TEST_CASE("a file that cannot be written whole is removed") {
  Folder folder;
  const auto path = folder.at("t.safetensors");
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // a process cannot raise its file size limit
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string bytes(80, 'x');
    const std::vector<checkpoint::TensorBytes> tensors = {
        {"a", graph::DType::float32, {20}, std::as_bytes(std::span(bytes))}};
    const auto message = error_of([&] { checkpoint::write_safetensors(path, tensors); });
    ::_exit(message == fmt::format("[file] {} must be written, but: File too large", path) ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(!std::filesystem::exists(path));
}
