// Checkpoints in a bucket of an S3 service.
#include <algorithm>
#include <charconv>

#include "base/fail.h"
#include "checkpoint/s3/client.h"
#include "checkpoint/s3/upload.h"
#include "checkpoint/s3/xml.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint::s3 {
namespace {

constexpr std::string_view kScheme = "s3://";

Place place_of(const std::string& path) {
  const auto rest = std::string_view(path).substr(kScheme.size());
  const auto slash = rest.find('/');
  Place place{std::string(rest.substr(0, slash)),
              slash == rest.npos ? "" : std::string(rest.substr(slash + 1))};
  const bool plain = std::ranges::all_of(place.bucket, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' ||
           (c >= 'A' && c <= 'Z');
  });
  if (place.bucket.empty() || !plain) {
    fail("s3", "a path of S3 is s3://BUCKET/PREFIX, but got \"{}\"", path);
  }
  return place;
}

// Returns the place of the objects in a folder: its key ends with "/" or is empty.
Place folder_of(const std::string& path) {
  auto place = place_of(path);
  while (place.key.ends_with('/')) place.key.pop_back();
  if (!place.key.empty()) place.key += '/';
  return place;
}

struct Listed {
  std::string key;  // a folder's ends with "/"
  uint64_t bytes = 0;
};

class S3Target : public Target {
 public:
  explicit S3Target(std::function<void()> waiting)
      : client_(settings_from_environment(), std::move(waiting)) {}

  void put(const std::string& path, std::string_view text) override {
    const auto writer = create(path, text.size());
    writer->write(std::as_bytes(std::span(text)));
    writer->finish();
  }

  std::unique_ptr<ObjectWriter> create(const std::string& path, uint64_t bytes) override {
    return make_upload(client_, place_of(path), bytes);
  }

  std::optional<uint64_t> size(const std::string& path) override {
    return size_of(client_, place_of(path));
  }

  void read(const std::string& path, uint64_t offset, std::span<std::byte> out) override {
    if (out.empty()) return;
    const auto place = place_of(path);
    const Request request{.method = "GET",
                          .bucket = place.bucket,
                          .key = place.key,
                          .query = "",
                          .headers = {},
                          .body = {},
                          .offset = offset,
                          .out = out};
    const auto answer = client_.send(request);
    if (answer.status != 206) refuse(client_, request, answer, "read");
  }

  std::string read_all(const std::string& path) override {
    const auto place = place_of(path);
    const Request request{.method = "HEAD", .bucket = place.bucket, .key = place.key};
    const auto answer = client_.send(request);
    if (!answer.is_good()) refuse(client_, request, answer, "read");
    std::string text(answer.length, '\0');
    read(path, 0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  void remove(const std::string& path) override { remove(place_of(path)); }

  std::vector<Entry> list(const std::string& folder) override {
    const auto place = folder_of(folder);
    std::vector<Entry> found;
    for (const auto& object : members(place, "/")) {
      auto name = object.key.substr(place.key.size());
      const bool is_folder = name.ends_with('/');
      if (is_folder) name.pop_back();
      if (!name.empty()) found.push_back({std::move(name), is_folder});
    }
    return found;
  }

  void make_folder(const std::string& folder) override {
    const auto place = folder_of(folder);
    write_request(client_, {.method = "PUT", .bucket = place.bucket, .key = place.key});
  }

  bool has_folder(const std::string& folder) override {
    return size_of(client_, folder_of(folder)).has_value();
  }

  void remove_folder(const std::string& folder) override {
    const auto place = folder_of(folder);
    for (const auto& object : members(place, "")) {
      if (object.key != place.key) return;
    }
    end_uploads(place);
    remove(place);
  }

  void sync_folder(const std::string&) override {}  // an answer means that the object is durable

  void move_folder(const std::string& from, const std::string& to,
                   const std::string& last) override {
    const auto source = folder_of(from), target = folder_of(to);
    auto objects = members(source, "");
    const auto is_last = [&](const Listed& object) { return object.key == source.key + last; };
    std::ranges::stable_partition(objects, [&](const Listed& object) { return !is_last(object); });
    for (const auto& object : objects) {
      const auto key = target.key + object.key.substr(source.key.size());
      copy_object(client_, {source.bucket, object.key}, {target.bucket, key}, object.bytes);
    }
    for (auto it = objects.rbegin(); it != objects.rend(); ++it) {
      remove({source.bucket, it->key});
    }
  }

  bool moves_at_once() const override { return false; }
  bool is_local() const override { return false; }

 private:
  void remove(const Place& place) {
    const Request request{.method = "DELETE", .bucket = place.bucket, .key = place.key};
    const auto answer = client_.send(request);
    if (!answer.is_good() && answer.code != "NoSuchKey") {
      refuse(client_, request, answer, "written");
    }
  }

  // Returns the objects whose keys begin with the place's; with the delimiter "/" those of its
  // folder, and the folders in it.
  std::vector<Listed> members(const Place& place, const std::string& delimiter) {
    std::vector<Listed> found;
    std::string token;
    do {
      Request request{.method = "GET", .bucket = place.bucket};
      if (!token.empty()) request.query = "continuation-token=" + encoded(token) + "&";
      if (!delimiter.empty()) request.query += "delimiter=" + encoded(delimiter) + "&";
      request.query += "list-type=2&prefix=" + encoded(place.key);
      const auto answer = client_.send(request);
      if (!answer.is_good()) refuse(client_, request, answer, "read");
      for (const auto text : elements(answer.body, "Contents")) {
        found.push_back({element(text, "Key"), number(element(text, "Size"))});
      }
      for (const auto text : elements(answer.body, "CommonPrefixes")) {
        found.push_back({element(text, "Prefix"), 0});
      }
      token = element(answer.body, "NextContinuationToken");
    } while (!token.empty());
    return found;
  }

  // Ends the uploads of a folder that nobody completes: their parts take room.
  void end_uploads(const Place& place) {
    const Request request{.method = "GET",
                          .bucket = place.bucket,
                          .query = "prefix=" + encoded(place.key) + "&uploads="};
    const auto answer = client_.send(request);
    if (!answer.is_good()) return;  // a service without uploads in parts, or without this right
    for (const auto text : elements(answer.body, "Upload")) {
      client_.send({.method = "DELETE",
                    .bucket = place.bucket,
                    .key = element(text, "Key"),
                    .query = "uploadId=" + encoded(element(text, "UploadId"))});
    }
  }

  static uint64_t number(const std::string& text) {
    uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  Client client_;
};

}  // namespace
}  // namespace perigee::checkpoint::s3

extern "C" void perigee_s3_open(std::function<void()> waiting,
                                std::unique_ptr<perigee::checkpoint::Target>& target) {
  target = std::make_unique<perigee::checkpoint::s3::S3Target>(std::move(waiting));
}
