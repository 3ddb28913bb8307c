// The pages of memory that the processes of a host share.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <string>

#include "exec/memory/shared_memory.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

constexpr int64_t kLarge = int64_t{2} << 20;

// Returns the bytes of the mapping at that address that are in large pages.
int64_t large_bytes(const std::byte* memory) {
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("-") < line.find(" ") && line.find("-") != line.npos) {
      here = std::stoull(line, nullptr, 16) == reinterpret_cast<uintptr_t>(memory);
    } else if (here && line.starts_with("ShmemPmdMapped:")) {
      return std::stoll(line.substr(15)) * 1024;
    }
  }
  return -1;
}

// Returns whether the system makes large pages of a file where it is asked to.
bool makes_large_pages() {
  const int file = memfd_create("test", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, kLarge) == 0);
  auto* memory = map_shared(file, kLarge);
  REQUIRE(memory != nullptr);
  memory[0] = std::byte{1};
  constexpr int kCollapse = 25;
  const bool makes = madvise(memory, kLarge, kCollapse) == 0;
  munmap(memory, kLarge);
  close(file);
  return makes;
}

}  // namespace

TEST_CASE("shared memory is zeroed, in large pages where the system makes them") {
  const auto shared = SharedMemory::open();
  for (const int64_t bytes : {int64_t{1}, kLarge - 1, kLarge, 3 * kLarge + 12345}) {
    INFO(bytes);
    const auto memory = shared->allocate(bytes);
    CHECK(std::all_of(memory.get(), memory.get() + bytes, [](auto b) { return b == std::byte{}; }));
    std::fill_n(memory.get(), bytes, std::byte{3});
    if (bytes < kLarge) continue;
    CHECK(reinterpret_cast<uintptr_t>(memory.get()) % kLarge == 0);
    if (!makes_large_pages()) {
      WARN("the system makes no large pages of shared memory");
    } else {
      CHECK(large_bytes(memory.get()) == bytes / kLarge * kLarge);
    }
  }
}

TEST_CASE("a second mapping of shared memory has its large pages and content") {
  const int64_t bytes = 2 * kLarge + 4096;
  const auto shared = SharedMemory::open();
  const auto memory = shared->allocate(bytes);
  memory.get()[bytes - 1] = std::byte{7};
  const auto place = shared->find(memory.get(), bytes);
  REQUIRE(place.has_value());
  auto* other = map_shared(place->descriptor, bytes);
  REQUIRE(other != nullptr);
  CHECK(other != memory.get());
  CHECK(reinterpret_cast<uintptr_t>(other) % kLarge == 0);
  CHECK(other[bytes - 1] == std::byte{7});
  other[5] = std::byte{9};
  CHECK(memory.get()[5] == std::byte{9});
  munmap(other, static_cast<size_t>(bytes));
}

TEST_CASE("a file that cannot be mapped is no memory") {
  CHECK(map_shared(-1, 4096) == nullptr);
  CHECK(errno == EBADF);
  CHECK(map_shared(-1, 2 * kLarge) == nullptr);
}

}  // namespace perigee::exec
