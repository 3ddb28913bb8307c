// Memory of this process that other processes of the host can map. Its segments are anonymous files
// (memfd_create): they are independent of /dev/shm and its size, have no name that another user
// could take, and end with the last process that maps them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/network/descriptor.h"

namespace perigee::exec {

// Where bytes lie in a process's shared memory. Other processes of the host read it.
struct SharedPlace {
  uint64_t segment = 0;     // counts the process's segments from 1; 0: no place
  uint64_t inode = 0;       // of the segment's file
  int32_t descriptor = -1;  // of the segment's file, in its owner
  int32_t padding = 0;
  int64_t segment_bytes = 0;
  int64_t offset = 0;
};

// The first segment of a process: its state, for its peers.
struct Board {
  enum State : uint32_t { runs, left, aborted };
  std::array<char, 32> nonce{};  // proves that a peer has mapped this process's memory
  std::atomic<uint32_t> state{runs};
  std::array<char, 512> reason{};  // aborted: why

  // A futex on which the process's helper thread sleeps: counts the requests for help.
  alignas(64) std::atomic<uint32_t> bell{0};

  // Segments that the process no longer uses. Of the n-th, the number is in freed[n % 64].
  alignas(64) std::atomic<uint64_t> freed_count{0};
  std::array<std::atomic<uint64_t>, 64> freed{};
};

// Maps a file of shared memory to be read and written; where it has large pages (2 MiB), they are
// mapped as such. Returns nullptr, and sets errno, where the system does not.
std::byte* map_shared(int file, int64_t bytes);

class SharedMemory : public std::enable_shared_from_this<SharedMemory> {
 public:
  // Throws Error naming the limit where the system gives no shared memory.
  static std::shared_ptr<SharedMemory> open();
  SharedMemory(const SharedMemory&) = delete;

  // Returns zeroed memory, aligned to a page, in large pages where the system has them. It is given
  // back when this process has freed it and peers have noticed (PeerMemory::at). `sparse`: pages come
  // with their first use. Throws Error naming the limit when there is not enough.
  std::shared_ptr<std::byte> allocate(int64_t bytes, bool sparse = false);

  // Closes the file of the segment that begins there, which no further process will map.
  void close(std::byte* segment);

  // Returns memory of any content for operands that are not shared. At most kKeptBytes are kept for
  // later operands.
  std::shared_ptr<std::byte> borrow(int64_t bytes);
  static constexpr int64_t kKeptBytes = int64_t{128} << 20;

  // Returns the place of `bytes` bytes at this address, or nothing where they are not shared.
  std::optional<SharedPlace> find(const void* address, int64_t bytes) const;

  Board& board() const { return *reinterpret_cast<Board*>(board_.get()); }
  SharedPlace board_place() const { return *find(board_.get(), sizeof(Board)); }

 private:
  struct Segment {
    SharedPlace place;
    Descriptor file;
  };
  SharedMemory() = default;
  void release(std::byte* begin);
  void give_back(std::byte* block, int64_t bytes);

  mutable std::mutex mutex_;
  std::map<const std::byte*, Segment> segments_;  // by their first byte
  uint64_t last_ = 0;
  std::shared_ptr<std::byte> board_;

  std::mutex blocks_mutex_;
  std::map<int64_t, std::vector<std::byte*>> free_;          // by size
  std::map<std::byte*, std::shared_ptr<std::byte>> blocks_;  // each block and its segment
  std::shared_ptr<std::byte> slab_;                          // small blocks are cut from it
  int64_t slab_used_ = 0, kept_ = 0;
};

class Device;

// Returns the CPU as a device (exec/device.h) whose memory for collectives is shared.
std::shared_ptr<Device> cpu_device(std::shared_ptr<SharedMemory> memory);

}  // namespace perigee::exec
