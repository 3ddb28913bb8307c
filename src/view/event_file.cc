#include "view/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/fail.h"

namespace perigee::view {
namespace {

// CRC-32C (RFC 3720), rotated and offset as TFRecords have it.
uint32_t masked_crc(std::string_view bytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        made[i] = (made[i] >> 1) ^ ((made[i] & 1) != 0 ? 0x82f63b78u : 0u);
      }
    }
    return made;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = table[(crc ^ static_cast<uint8_t>(c)) & 0xff] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xa282ead8u;
}

template <class T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  for (auto& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value = static_cast<T>(value >> 8);
  }
  return bytes;
}

// Fields of a protocol buffer: a key of number and wire type, then the value.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  return bytes + static_cast<char>(value);
}

std::string key(uint32_t number, Wire wire) { return varint(number << 3 | wire); }

std::string bytes_field(uint32_t number, std::string_view bytes) {
  return key(number, kLength) + varint(bytes.size()) + std::string(bytes);
}

std::string event(double wall_time, int64_t step) {
  return key(1, kFixed64) + little_endian(std::bit_cast<uint64_t>(wall_time)) + key(2, kVarint) +
         varint(static_cast<uint64_t>(step));
}

std::string record(std::string_view message) {
  const auto length = little_endian(uint64_t{message.size()});
  return length + little_endian(masked_crc(length)) + std::string(message) +
         little_endian(masked_crc(message));
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string event_record(double wall_time, int64_t step,
                         const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    summary += bytes_field(1,
                           bytes_field(1, tag) + key(2, kFixed32) +
                               little_endian(std::bit_cast<uint32_t>(static_cast<float>(value))));
  }
  return record(event(wall_time, step) + bytes_field(5, summary));
}

EventFile::EventFile(const std::string& folder, int64_t first_step) {
  const double time = now();
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "localhost");
  path_ = fmt::format("{}/{}{:.0f}.{}.{}", folder, kEventFiles, std::floor(time), host.data(),
                      getpid());
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_APPEND, 0666);
  if (fd_ < 0) {
    fail_run("metrics", "\"{}\" must be writable, but: {}", path_, std::strerror(errno));
  }
  write(record(event(time, 0) + bytes_field(3, "brain.Event:2")));
  // A session that starts at a step: later steps of earlier sessions are void.
  constexpr uint32_t kSessionLog = 7, kStatus = 1, kStart = 1;
  write(record(event(time, first_step) +
               bytes_field(kSessionLog, key(kStatus, kVarint) + varint(kStart))));
}

EventFile::~EventFile() {
  if (fd_ >= 0) close(fd_);
}

void EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  auto finite = scalars;
  std::erase_if(finite, [](const auto& scalar) { return !std::isfinite(scalar.second); });
  if (!finite.empty()) write(event_record(now(), step, finite));
}

void EventFile::write(std::string_view record) {
  while (!record.empty()) {
    const auto count = ::write(fd_, record.data(), record.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      fail_run("metrics", "\"{}\" must be writable, but: {}", path_, std::strerror(errno));
    }
    record.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace perigee::view
