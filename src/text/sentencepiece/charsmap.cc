#include "text/sentencepiece/charsmap.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

namespace perigee::text {
namespace {

// Fields of sentencepiece_model.proto.
constexpr uint64_t kNormalizer = 3, kDenormalizer = 5;  // of ModelProto
constexpr uint64_t kCharsmap = 2;                       // of NormalizerSpec

// The fields of a message of protocol buffers, one after the other.
class Message {
 public:
  explicit Message(std::string_view bytes) : left_(bytes) {}

  struct Field {
    uint64_t number = 0;
    std::string_view bytes;  // of a field with a length
  };
  // Returns the next field. Returns nothing after the last one, and for bytes that are no message.
  std::optional<Field> next() {
    const auto key = varint();
    if (!key) return std::nullopt;
    Field field{*key >> 3, {}};
    switch (*key & 7) {
      case 0:
        return varint() ? std::optional(field) : std::nullopt;
      case 1:
        return skip(8) ? std::optional(field) : std::nullopt;
      case 5:
        return skip(4) ? std::optional(field) : std::nullopt;
      case 2: {
        const auto size = varint();
        if (!size || *size > left_.size()) return std::nullopt;
        field.bytes = left_.substr(0, *size);
        left_.remove_prefix(*size);
        return field;
      }
      default:
        return std::nullopt;
    }
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(left_.front());
      left_.remove_prefix(1);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  bool skip(size_t count) {
    if (count > left_.size()) return false;
    left_.remove_prefix(count);
    return true;
  }

  std::string_view left_;
};

// `charsmap`: the size of a double-array trie in bytes, its units (darts-clone), and the
// replacements, each ended by a zero.
std::string defect_of(std::string_view charsmap) {
  uint32_t size = 0;
  if (charsmap.size() < sizeof size) return "is too short";
  std::memcpy(&size, charsmap.data(), sizeof size);
  charsmap.remove_prefix(sizeof size);
  // Units are made in blocks of 256.
  if (size == 0 || size % 1024 != 0 || size > charsmap.size()) {
    return "has a trie of a wrong size";
  }
  std::vector<uint32_t> units(size / 4);
  std::memcpy(units.data(), charsmap.data(), size);
  const auto replacements = charsmap.substr(size);
  if (replacements.empty() || replacements.back() != '\0') return "has a replacement without end";
  constexpr uint32_t kValue = 1U << 31, kHasLeaf = 1U << 8;
  for (size_t i = 0; i < units.size(); ++i) {
    const auto unit = units[i];
    if (unit & kValue) continue;
    const size_t children = i ^ (size_t(unit >> 10) << ((unit & 0x200U) >> 6));
    if ((children | 0xff) >= units.size()) return "has a branch outside of its trie";
    if ((unit & kHasLeaf) && (units[children] & ~kValue) >= replacements.size()) {
      return "has a replacement outside of its text";
    }
  }
  return "";
}

}  // namespace

std::string charsmap_defect(std::string_view model) {
  Message fields(model);
  while (const auto field = fields.next()) {
    if (field->number != kNormalizer && field->number != kDenormalizer) continue;
    Message spec(field->bytes);
    while (const auto part = spec.next()) {
      if (part->number != kCharsmap || part->bytes.empty()) continue;
      if (auto defect = defect_of(part->bytes); !defect.empty()) return defect;
    }
  }
  return "";
}

}  // namespace perigee::text
