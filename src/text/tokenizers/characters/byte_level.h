// Bytes as the characters by which byte-level vocabularies write them (GPT-2).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace perigee::text {

// Returns the character of each byte.
const std::array<char32_t, 256>& byte_characters();

// Returns the byte of a character, or -1.
int byte_of(char32_t c);

std::string to_byte_level(std::string_view text);

// Sets two neighbours to the characters of the bytes on both sides of the cut between them.
void to_byte_level(char32_t& a, char32_t& b);

}  // namespace perigee::text
