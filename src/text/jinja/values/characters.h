// Characters of UTF-8 texts, with Python's meaning. Texts are valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace perigee::text::jinja {

// Returns the character that begins at byte `at`, and moves `at` to the next one.
char32_t next_character(std::string_view text, size_t& at);
void append(std::string& text, char32_t character);

// Returns the number of characters.
size_t length_of(std::string_view text);
// Returns the byte at which character `index` begins; the text's size past its end.
size_t byte_of(std::string_view text, size_t index);
// Returns the first place of `part` at or after byte `from`, or npos, in linear time.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
bool valid_utf8(std::string_view text);

bool is_space(char32_t character);
bool is_printable(char32_t character);
bool is_upper(char32_t character);
bool is_lower(char32_t character);
bool is_alphabetic(char32_t character);
bool is_digit(char32_t character);

// Letters beyond ASCII have simple case mappings, and those of a few that become several letters.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
// The first character in upper case, all others in lower case.
std::string capitalized(std::string_view text);

// Returns the text without the characters of `chars` at its ends; nullptr: without white space.
std::string_view strip_left(std::string_view text, const std::string* chars = nullptr);
std::string_view strip_right(std::string_view text, const std::string* chars = nullptr);

}  // namespace perigee::text::jinja
