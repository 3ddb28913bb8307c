#include "checkpoint/s3/upload.h"

#include <algorithm>

#include "base/fail.h"
#include "checkpoint/s3/part_bytes.h"
#include "checkpoint/s3/xml.h"

namespace perigee::checkpoint::s3 {
namespace {

// Returns the value of the header x-amz-copy-source.
std::string copy_source(const Place& from) {
  return "x-amz-copy-source: /" + from.bucket + "/" + encoded(from.key, "/");
}

// Throws Error unless the service has the object with its bytes.
void require_size(Client& client, const Place& place, uint64_t bytes) {
  const auto there = size_of(client, place);
  if (there == bytes) return;
  fail_run("s3", "s3://{}/{} must have the {} bytes that were written, but it {}", place.bucket,
           place.key, bytes, there ? fmt::format("has {}", *there) : "does not exist");
}

class Upload : public ObjectWriter {
 public:
  Upload(Client& client, Place place, uint64_t bytes)
      : client_(client),
        place_(std::move(place)),
        part_(uploaded_part_bytes(client.settings(), bytes)) {}

  void write(std::span<const std::byte> bytes) override {
    written_ += bytes.size();
    while (!bytes.empty()) {
      if (buffer_.empty() && bytes.size() > part_) {  // from the caller's memory
        send(bytes.first(part_));
        bytes = bytes.subspan(part_);
        continue;
      }
      const auto room = std::min<size_t>(part_ - buffer_.size(), bytes.size());
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(room));
      bytes = bytes.subspan(room);
      if (buffer_.size() == part_ && !bytes.empty()) send_buffer();
    }
  }

  void finish() override {
    if (parts_) {
      if (!buffer_.empty()) send_buffer();
      parts_->complete();
    } else {
      write_request(client_, {.method = "PUT",
                              .bucket = place_.bucket,
                              .key = place_.key,
                              .query = "",
                              .headers = {},
                              .body = buffer_});
    }
    require_size(client_, place_, written_);
  }

 private:
  void send_buffer() {
    send(buffer_);
    buffer_.clear();
  }
  void send(std::span<const std::byte> bytes) {
    if (!parts_) parts_ = std::make_unique<Parts>(client_, place_);
    parts_->add(bytes);
  }

  Client& client_;
  Place place_;
  uint64_t part_;
  uint64_t written_ = 0;
  std::vector<std::byte> buffer_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace

Answer write_request(Client& client, const Request& request) {
  auto answer = client.send(request);
  if (!answer.is_good() || !answer.code.empty()) refuse(client, request, answer, "written");
  return answer;
}

std::optional<uint64_t> size_of(Client& client, const Place& place) {
  const Request request{.method = "HEAD", .bucket = place.bucket, .key = place.key};
  const auto answer = client.send(request);
  if (answer.status == 404) return std::nullopt;
  if (!answer.is_good()) refuse(client, request, answer, "read");
  return answer.length;
}

Parts::Parts(Client& client, Place place) : client_(client), place_(std::move(place)) {
  const Request request{
      .method = "POST", .bucket = place_.bucket, .key = place_.key, .query = "uploads="};
  const auto answer = write_request(client_, request);
  id_ = element(answer.body, "UploadId");
  if (id_.empty()) refuse(client_, request, answer, "written");
}

Parts::~Parts() {
  if (complete_) return;
  try {
    client_.send({.method = "DELETE",
                  .bucket = place_.bucket,
                  .key = place_.key,
                  .query = "uploadId=" + encoded(id_)});
  } catch (...) {  // the next checkpoint of this step removes it
  }
}

Request Parts::part_request() const {
  return {.method = "PUT",
          .bucket = place_.bucket,
          .key = place_.key,
          .query = fmt::format("partNumber={}&uploadId={}", tags_.size() + 1, encoded(id_))};
}

void Parts::keep_tag(const Request& request, const Answer& answer, std::string tag) {
  if (tag.empty()) refuse(client_, request, answer, "written");
  tags_.push_back(std::move(tag));
}

void Parts::add(std::span<const std::byte> bytes) {
  auto request = part_request();
  request.body = bytes;
  const auto answer = write_request(client_, request);
  keep_tag(request, answer, answer.etag);
}

void Parts::add_copy(const Place& from, uint64_t offset, uint64_t bytes) {
  auto request = part_request();
  request.headers = {copy_source(from), fmt::format("x-amz-copy-source-range: bytes={}-{}", offset,
                                                    offset + bytes - 1)};
  const auto answer = write_request(client_, request);
  keep_tag(request, answer, element(answer.body, "ETag"));
}

void Parts::complete() {
  std::string text = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < tags_.size(); ++i) {
    text += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, tags_[i]);
  }
  text += "</CompleteMultipartUpload>";
  const Request request{.method = "POST",
                        .bucket = place_.bucket,
                        .key = place_.key,
                        .query = "uploadId=" + encoded(id_),
                        .headers = {"Content-Type: application/xml"},
                        .body = std::as_bytes(std::span(text))};
  const auto answer = client_.send(request);
  const bool good = answer.is_good() && answer.code.empty();
  // Where the answer of an earlier attempt was lost, the upload is complete already: the caller
  // checks the object's size.
  if (!good && answer.code != "NoSuchUpload") refuse(client_, request, answer, "written");
  complete_ = true;
}

std::unique_ptr<ObjectWriter> make_upload(Client& client, Place place, uint64_t bytes) {
  return std::make_unique<Upload>(client, std::move(place), bytes);
}

void copy_object(Client& client, const Place& from, const Place& to, uint64_t bytes) {
  const auto part = copied_part_bytes(client.settings(), bytes);
  if (bytes <= part) {
    write_request(client, {.method = "PUT",
                           .bucket = to.bucket,
                           .key = to.key,
                           .query = "",
                           .headers = {copy_source(from)}});
  } else {
    Parts parts(client, to);
    for (uint64_t offset = 0; offset < bytes; offset += part) {
      parts.add_copy(from, offset, std::min(part, bytes - offset));
    }
    parts.complete();
  }
  require_size(client, to, bytes);
}

}  // namespace perigee::checkpoint::s3
