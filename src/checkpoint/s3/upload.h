// An object that is uploaded in parts of bounded size.
#pragma once

#include <memory>
#include <string>

#include "checkpoint/s3/client.h"
#include "checkpoint/target.h"

namespace perigee::checkpoint::s3 {

// An object's bucket and key.
struct Place {
  std::string bucket, key;
};

// Parts of an object that is uploaded; the object appears when `complete` returns.
class Parts {
 public:
  // Begins the upload.
  Parts(Client& client, Place place);
  // Ends an upload that is not complete, and removes its parts.
  ~Parts();
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  void add(std::span<const std::byte> bytes);
  // Adds a range of another object, which the service copies.
  void add_copy(const Place& from, uint64_t offset, uint64_t bytes);
  void complete();

 private:
  Request part_request() const;
  void keep_tag(const Request& request, const Answer& answer, std::string tag);

  Client& client_;
  Place place_;
  std::string id_;
  std::vector<std::string> tags_;
  bool complete_ = false;
};

// Returns a writer of an object that will have `bytes` bytes. It holds at most one part in
// memory: settings.part_bytes, or more where the service's limit of 10,000 parts demands it.
// Smaller objects are sent by one request. `finish` checks that the service has as many bytes as
// were written.
std::unique_ptr<ObjectWriter> make_upload(Client& client, Place place, uint64_t bytes);

// Copies an object within the service.
void copy_object(Client& client, const Place& from, const Place& to, uint64_t bytes);

// Returns the number of bytes of the object, or nothing for an object that does not exist.
std::optional<uint64_t> size_of(Client& client, const Place& place);

// Sends a request that writes. Throws Error (failed) where the answer is an error.
Answer write_request(Client& client, const Request& request);

}  // namespace perigee::checkpoint::s3
