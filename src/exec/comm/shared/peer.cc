#include "exec/comm/shared/peer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "base/network/descriptor.h"

namespace perigee::exec {
namespace {

std::string link_text(const std::string& path) {
  std::array<char, 256> text{};
  const auto length = readlink(path.c_str(), text.data(), text.size());
  return {text.data(), length > 0 ? static_cast<size_t>(length) : 0};
}

// Returns the state of a process ('Z': ended) and its time of start, or nothing where it is gone.
std::optional<std::pair<char, uint64_t>> state_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  std::string text;
  std::getline(file, text);
  const auto name = text.rfind(')');  // may hold spaces
  if (name == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name + 1));
  char state = 0;
  rest >> state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) rest >> skipped;
  uint64_t started = 0;
  rest >> started;
  if (!rest) return std::nullopt;
  return std::pair{state, started};
}

}  // namespace

std::string ProcessAddress::print() const {
  return fmt::format("{} {} {} {} {} {} {} {}", host, process, started, board.segment, board.inode,
                     board.descriptor, board.segment_bytes, nonce);
}

std::optional<ProcessAddress> ProcessAddress::parse(const std::string& text) {
  std::istringstream in(text);
  ProcessAddress a;
  in >> a.host >> a.process >> a.started >> a.board.segment >> a.board.inode >>
      a.board.descriptor >> a.board.segment_bytes >> a.nonce;
  if (!in || a.nonce.size() >= sizeof(Board::nonce)) return std::nullopt;
  return a;
}

ProcessAddress address_of(const SharedMemory& memory) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  const auto processes = link_text("/proc/self/ns/pid"), network = link_text("/proc/self/ns/net");
  const auto self = link_text("/proc/self");
  const auto state = state_of("self");
  if (boot.empty() || processes.empty() || network.empty() || self.empty() || !state) {
    fail_run("memory", "ranks find each other's memory by /proc, but it is not mounted here");
  }
  return {.host = fmt::format("{}/{}/{}", boot, processes, network),
          .process = std::stoll(self),
          .started = state->second,
          .board = memory.board_place(),
          .nonce = memory.board().nonce.data()};
}

Mapping::Mapping(int64_t process, const SharedPlace& place)
    : segment(place.segment), bytes(place.segment_bytes) {
  const auto path = fmt::format("/proc/{}/fd/{}", process, place.descriptor);
  const auto refuse = [&](const std::string& why) {
    fail_run("memory", "memory of process {} must be mapped, but got: {}", process, why);
  };
  // The number may be that of another file of another process: look before opening it.
  const auto name = link_text(path);
  if (name.empty()) refuse(std::strerror(errno));
  if (!name.starts_with("/memfd:perigee")) refuse("another file");
  const Descriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    refuse(std::string(std::strerror(errno)) +
           (errno == EMFILE ? ": raise the limit of open files (ulimit -n)" : ""));
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || status.st_ino != place.inode || status.st_size < bytes) {
    refuse("another segment");
  }
  begin = map_shared(file.get(), bytes);
  if (!begin) refuse(std::strerror(errno));
}

Mapping::~Mapping() {
  if (begin) munmap(begin, static_cast<size_t>(bytes));
}

PeerMemory::PeerMemory(ProcessAddress address) : address_(std::move(address)) {
  if (address_.board.segment_bytes < static_cast<int64_t>(sizeof(Board))) {
    fail_run("memory", "memory of process {} must hold a board, but has {} bytes", address_.process,
             address_.board.segment_bytes);
  }
  board_ = std::make_shared<Mapping>(address_.process, address_.board);
  const auto& nonce = board().nonce;
  if (std::string_view(nonce.data(), strnlen(nonce.data(), nonce.size())) != address_.nonce) {
    fail_run("memory", "process {} of this host must be a rank of this job, but is not",
             address_.process);
  }
}

std::shared_ptr<Mapping> PeerMemory::at(const SharedPlace& place) {
  std::lock_guard lock(mutex_);
  if (board().freed_count.load(std::memory_order_acquire) != freed_) drop_freed();
  for (const auto& mapping : mapped_) {
    if (mapping->segment == place.segment) return mapping;
  }
  return mapped_.emplace_back(std::make_shared<Mapping>(address_.process, place));
}

void PeerMemory::drop_freed() {
  const auto& b = board();
  const auto count = b.freed_count.load(std::memory_order_acquire);
  if (count - freed_ >= b.freed.size()) {
    mapped_.clear();  // those in use are kept by their users, and mapped again
  }
  for (; freed_ < count && !mapped_.empty(); ++freed_) {
    const auto number = b.freed[freed_ % b.freed.size()].load(std::memory_order_relaxed);
    std::erase_if(mapped_, [&](const auto& mapping) { return mapping->segment == number; });
  }
  freed_ = count;
}

bool PeerMemory::runs() const {
  const auto state = state_of(std::to_string(address_.process));
  return state && state->first != 'Z' && state->first != 'X' && state->second == address_.started;
}

}  // namespace perigee::exec
