// Characters of UTF-8: their classes, cases and normal forms, as the tokenizers library has them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perigee::text {

// Beyond all characters: one that is not known. No class has it.
inline constexpr char32_t kUnknown = 0x110000;

struct Character {
  char32_t code = 0;
  size_t length = 1;  // bytes
};

// Returns the character that begins at byte `at` of valid UTF-8.
Character character_at(std::string_view text, size_t at);

// Returns the character that ends before byte `end` (> 0) of valid UTF-8.
Character character_before(std::string_view text, size_t end);

void append(std::string& text, char32_t code);

// Returns the place of the first byte that is of no character of UTF-8, or text.size().
size_t valid_length(std::string_view text);

// Returns the text as valid UTF-8. One U+FFFD replaces the longest run of bytes that begins a
// character and does not complete it, or a single byte that begins no character.
std::string lossy_utf8(std::string_view bytes);

bool is_ascii(std::string_view text);
bool is_space(char32_t code);            // White_Space
bool is_word(char32_t code);             // \w: alphabetic, marks, digits, connectors, joiners
bool is_numeric(char32_t code);          // Nd, Nl, No
bool is_punctuation(char32_t code);      // of ASCII, and P
bool is_mark(char32_t code);             // Mn, Mc, Me
bool is_nonspacing_mark(char32_t code);  // Mn
bool is_other(char32_t code);            // Cc, Cf, Co

// Appends the character in lower case: one or two characters.
void append_lower(std::string& text, char32_t code);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

std::string normalized(std::string_view text, NormalForm form);

// Returns whether the character is itself in that form, does not combine with an earlier
// character, and no later one moves before it.
bool is_inert(char32_t code, NormalForm form);

// Returns the place where the grapheme that begins at `at` ends.
size_t grapheme_end(std::string_view text, size_t at);

}  // namespace perigee::text
