#include "checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

namespace perigee::checkpoint {
namespace {

std::string text_of(const XXH128_hash_t& digest) {
  return fmt::format("{:016x}{:016x}", digest.high64, digest.low64);
}

}  // namespace

struct Checksum::State {
  XXH3_state_t* hash = XXH3_createState();
  ~State() { XXH3_freeState(hash); }
};

Checksum::Checksum() : state_(std::make_shared<State>()) { XXH3_128bits_reset(state_->hash); }

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->hash, bytes.data(), bytes.size());
}

std::string Checksum::text() const { return text_of(XXH3_128bits_digest(state_->hash)); }

std::string checksum_of(std::span<const std::byte> bytes) {
  return text_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string checksum_of(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text)));
}

}  // namespace perigee::checkpoint
