#include "exec/memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/fail.h"

namespace perigee::exec {
namespace {

constexpr int64_t kPage = 4096, kSlab = 1 << 20, kSmall = 64 << 10, kLargePage = 1 << 21;

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulate = 23;
#else
constexpr int kPopulate = MADV_POPULATE_WRITE;
#endif
#ifndef MADV_COLLAPSE
constexpr int kCollapse = 25;
#else
constexpr int kCollapse = MADV_COLLAPSE;
#endif

int64_t rounded_up(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

[[noreturn]] void fail_segment(int64_t bytes, int error) {
  const auto* remedy = error == EMFILE  ? ": raise the limit of open files (ulimit -n)"
                       : error == EFBIG ? ": remove the limit of files' sizes (ulimit -f)"
                                        : "";
  fail_run("memory", "ranks of one host must get {} bytes of shared memory, but got: {}{}", bytes,
           std::strerror(error), remedy);
}

// Gives the file large pages, also where the system makes none by itself (Linux 6.1). Reads and writes
// in order are a tenth to a quarter faster. A large page takes the place of the small ones, of which
// there must be one.
void use_large_pages(std::byte* memory, size_t bytes) {
  const auto whole = bytes / kLargePage * kLargePage;
  if (whole == 0 || reinterpret_cast<uintptr_t>(memory) % kLargePage != 0) return;
  madvise(memory, bytes, MADV_HUGEPAGE);
  for (size_t at = 0; at < whole; at += kLargePage) {
    if (madvise(memory + at, kPage, kPopulate) != 0) return;
  }
  madvise(memory, whole, kCollapse);
}

// Takes pages for the whole file, so that their lack is an error now, not a signal later.
int populate(int file, std::byte* memory, size_t bytes) {
  use_large_pages(memory, bytes);
  if (madvise(memory, bytes, kPopulate) == 0) return 0;
  if (errno != EINVAL) return errno == EFAULT ? ENOMEM : errno;
  return posix_fallocate(file, 0, static_cast<off_t>(bytes));  // Linux before 5.14
}

}  // namespace

std::byte* map_shared(int file, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const auto map = [&](void* at, int flags) {
    return mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0);
  };
  void* mapped = MAP_FAILED;
  if (bytes >= kLargePage) {
    // Reserves one large page more than needed, and unmaps the addresses around the aligned part.
    const auto room = size + static_cast<size_t>(kLargePage);
    void* reserved = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                          0);
    if (reserved != MAP_FAILED) {
      auto* const begin = static_cast<std::byte*>(reserved);
      const auto skipped = (kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage) %
                           kLargePage;
      const auto used = skipped + static_cast<size_t>(rounded_up(bytes, kPage));
      mapped = map(begin + skipped, MAP_FIXED);
      if (mapped == MAP_FAILED) {
        munmap(begin, room);
      } else {
        if (skipped > 0) munmap(begin, skipped);
        if (used < room) munmap(begin + used, room - used);
      }
    }
  }
  if (mapped == MAP_FAILED) mapped = map(nullptr, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<std::byte*>(mapped);
}

std::shared_ptr<SharedMemory> SharedMemory::open() {
  // Where files' sizes are limited, a segment beyond the limit would end the process by a signal.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    fail_segment(sizeof(Board), EFBIG);
  }
  std::shared_ptr<SharedMemory> made(new SharedMemory);
  // The board lives as long as the memory object, so it must not own the object.
  auto board = made->allocate(sizeof(Board));
  new (board.get()) Board;
  auto& nonce = reinterpret_cast<Board*>(board.get())->nonce;
  std::array<unsigned char, 15> random{};
  if (getrandom(random.data(), random.size(), 0) != std::ssize(random)) {
    fail_segment(sizeof(Board), errno);
  }
  for (size_t i = 0; i < random.size(); ++i) {
    nonce[2 * i] = "0123456789abcdef"[random[i] >> 4];
    nonce[2 * i + 1] = "0123456789abcdef"[random[i] & 15];
  }
  made->board_ = std::move(board);
  return made;
}

std::shared_ptr<std::byte> SharedMemory::allocate(int64_t bytes, bool sparse) {
  const auto size = rounded_up(std::max<int64_t>(bytes, 1), kPage);
  Descriptor file(static_cast<int>(memfd_create("perigee", MFD_CLOEXEC)));
  if (file.get() < 0 || ftruncate(file.get(), size) != 0) fail_segment(bytes, errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail_segment(bytes, errno);
  auto* begin = map_shared(file.get(), size);
  if (!begin) fail_segment(bytes, errno);
  if (!sparse) {
    if (const int error = populate(file.get(), begin, static_cast<size_t>(size)); error != 0) {
      munmap(begin, static_cast<size_t>(size));
      fail_segment(bytes, error);
    }
  }
  {
    std::lock_guard lock(mutex_);
    const SharedPlace place{.segment = ++last_,
                            .inode = status.st_ino,
                            .descriptor = file.get(),
                            .segment_bytes = size};
    segments_.emplace(begin, Segment{place, std::move(file)});
  }
  return {begin, [kept = weak_from_this(), size](std::byte* memory) {
            if (const auto owner = kept.lock()) owner->release(memory);
            munmap(memory, static_cast<size_t>(size));
          }};
}

void SharedMemory::close(std::byte* segment) {
  std::lock_guard lock(mutex_);
  if (const auto found = segments_.find(segment); found != segments_.end()) {
    found->second.file = Descriptor();
  }
}

void SharedMemory::release(std::byte* begin) {
  std::lock_guard lock(mutex_);
  const auto found = segments_.find(begin);
  if (found == segments_.end()) return;
  auto& b = board();
  const auto count = b.freed_count.load(std::memory_order_relaxed);
  b.freed[count % b.freed.size()].store(found->second.place.segment, std::memory_order_relaxed);
  b.freed_count.store(count + 1, std::memory_order_release);
  segments_.erase(found);
}

std::optional<SharedPlace> SharedMemory::find(const void* address, int64_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(address);
  std::lock_guard lock(mutex_);
  auto after = segments_.upper_bound(begin);
  if (after == segments_.begin()) return std::nullopt;
  const auto& [first, segment] = *--after;
  const auto offset = begin - first;
  if (offset + bytes > segment.place.segment_bytes) return std::nullopt;
  auto place = segment.place;
  place.offset = offset;
  return place;
}

std::shared_ptr<std::byte> SharedMemory::borrow(int64_t bytes) {
  const auto wanted = std::max<int64_t>(bytes, kPage);
  const bool small = wanted <= kSmall;
  const auto size = small ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(wanted)))
                          : rounded_up(wanted, kSlab);
  std::lock_guard lock(blocks_mutex_);
  auto found = free_.lower_bound(size);
  std::byte* block = nullptr;
  if (found != free_.end() && (found->first == size || (!small && found->first <= 2 * size))) {
    block = found->second.back();
    found->second.pop_back();
    const auto of = found->first;
    if (found->second.empty()) free_.erase(found);
    if (!small) kept_ -= of;
    return {block, [kept = shared_from_this(), of](std::byte* b) { kept->give_back(b, of); }};
  }
  if (small) {
    if (!slab_ || slab_used_ + size > kSlab) {
      slab_ = allocate(kSlab);
      slab_used_ = 0;
    }
    block = slab_.get() + slab_used_;
    slab_used_ += size;
    blocks_.emplace(block, slab_);
  } else {
    auto segment = allocate(size);
    block = segment.get();
    blocks_.emplace(block, std::move(segment));
  }
  return {block, [kept = shared_from_this(), size](std::byte* b) { kept->give_back(b, size); }};
}

void SharedMemory::give_back(std::byte* block, int64_t bytes) {
  std::lock_guard lock(blocks_mutex_);
  if (bytes > kSmall) {
    // The newest operands are those that come again.
    for (auto other = free_.upper_bound(kSmall); kept_ + bytes > kKeptBytes && other != free_.end();
         other = free_.erase(other)) {
      for (auto* old : other->second) {
        blocks_.erase(old);
        kept_ -= other->first;
      }
    }
    if (kept_ + bytes > kKeptBytes) {
      blocks_.erase(block);
      return;
    }
    kept_ += bytes;
  }
  free_[bytes].push_back(block);
}

}  // namespace perigee::exec
