// Where checkpoints are: a folder of a file system, or a bucket of an S3 service.
//
// A path begins with its target: "/runs/a/checkpoints/step-3/index.json" or
// "s3://BUCKET/PREFIX/checkpoints/step-3/index.json". All functions throw Error naming the path:
// writing fails (Status::failed), reading is invalid (Status::invalid) except where the service
// does not answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::checkpoint {

// An object that is being written. If it is destroyed before `finish` returns, it is discarded.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;
  // Returns when the object is stored durably, with the bytes that were written.
  virtual void finish() = 0;
};

// A member of a folder.
struct Entry {
  std::string name;  // without the folder
  bool is_folder = false;
};

// A target is used by one thread at a time.
class Target {
 public:
  virtual ~Target() = default;

  // Writes a small object, atomically: a crash leaves the old object or the new one.
  virtual void put(const std::string& path, std::string_view text) = 0;
  // Begins an object of `bytes` bytes, which replaces one of the same path. A crash may leave a
  // part of it in a folder; an S3 service has all of it or nothing.
  virtual std::unique_ptr<ObjectWriter> create(const std::string& path, uint64_t bytes) = 0;
  // Returns the object's bytes; nothing where there is no such object.
  virtual std::optional<uint64_t> size(const std::string& path) = 0;
  // Reads out.size() bytes of the object from `offset` on; these must exist.
  virtual void read(const std::string& path, uint64_t offset, std::span<std::byte> out) = 0;
  virtual std::string read_all(const std::string& path) = 0;
  // Removes an object; does nothing where there is none.
  virtual void remove(const std::string& path) = 0;

  // Returns the members of a folder; none where there is no folder.
  virtual std::vector<Entry> list(const std::string& folder) = 0;
  // Makes a folder and its parents. An S3 service has an empty object "FOLDER/" for it.
  virtual void make_folder(const std::string& folder) = 0;
  virtual bool has_folder(const std::string& folder) = 0;
  // Removes a folder and unfinished objects in it, unless it has finished ones.
  virtual void remove_folder(const std::string& folder) = 0;
  // Waits until the names in a folder are durable.
  virtual void sync_folder(const std::string& folder) = 0;
  // Gives a folder another name, which no other folder has. The objects named in `last` are copied
  // after and removed before all others where it is not atomic.
  virtual void move_folder(const std::string& from, const std::string& to,
                           const std::string& last) = 0;
  // Returns whether move_folder is atomic and copies no bytes.
  virtual bool moves_at_once() const = 0;
  // Returns whether paths are files of this host, which can be mapped into memory.
  virtual bool is_local() const = 0;
};

// Returns the target of a path. `waiting` is called several times a second while a request to a
// service takes long; an error that it throws ends the request. Throws Error where the environment
// lacks credentials or the part of Perigee for S3 does not load (s3/settings.h).
std::unique_ptr<Target> open_target(const std::string& path,
                                    std::function<void()> waiting = nullptr);

// The function that the plugin libperigee_s3.so exports as "perigee_s3_open".
using OpenS3 = void (*)(std::function<void()> waiting, std::unique_ptr<Target>& target);

// Returns a target of this host's file system.
std::unique_ptr<Target> folder_target();

// Returns whether the path is of an S3 service: it begins with "s3://".
bool is_s3(std::string_view path);

// Returns FOLDER/NAME.
std::string inside(const std::string& folder, std::string_view name);

// Returns whether two paths are of one folder.
bool is_same_folder(const std::string& a, const std::string& b);

// Returns the object's bytes as text. Throws Error where it cannot be read.
std::string read_text(const std::string& path);

}  // namespace perigee::checkpoint
