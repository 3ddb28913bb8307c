// The shared memory of another process of this host (exec/memory/shared_memory.h), mapped here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exec/memory/shared_memory.h"

namespace perigee::exec {

// How a peer finds a process and its board. Processes with different `host` cannot share memory.
struct ProcessAddress {
  std::string host;  // the kernel's boot and the namespaces of processes and network
  int64_t process = 0;
  uint64_t started = 0;  // tells the process from a later one with the same number
  SharedPlace board;
  std::string nonce;

  std::string print() const;
  static std::optional<ProcessAddress> parse(const std::string& text);
};

// Returns this process's address. Throws Error where /proc does not tell.
ProcessAddress address_of(const SharedMemory& memory);

// A mapped segment; unmapped with the last copy of its pointer.
struct Mapping {
  Mapping(int64_t process, const SharedPlace& place);
  ~Mapping();
  Mapping(const Mapping&) = delete;

  uint64_t segment;
  int64_t bytes;
  std::byte* begin = nullptr;
};

class PeerMemory {
 public:
  // Maps the peer's board. Throws Error saying why the peer's memory cannot be shared: it must hold
  // the nonce of the address, which came through the job's store.
  explicit PeerMemory(ProcessAddress address);

  Board& board() const { return *reinterpret_cast<Board*>(board_->begin); }

  // Returns the mapping of the place's segment, made at first use. Mappings that the peer has freed
  // end. Throws Error when it cannot be mapped.
  std::shared_ptr<Mapping> at(const SharedPlace& place);

  // Returns whether the process still runs. Reads /proc: for waits that take long.
  bool runs() const;

 private:
  void drop_freed();

  ProcessAddress address_;
  std::shared_ptr<Mapping> board_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Mapping>> mapped_;
  uint64_t freed_ = 0;  // of Board::freed_count: dropped
};

}  // namespace perigee::exec
