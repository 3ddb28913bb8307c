// The table of replacements in a SentencePiece model: the library reads it without looking at the
// table's bounds.
#pragma once

#include <string>
#include <string_view>

namespace perigee::text {

// `model`: the bytes of a ModelProto. Returns "", or what is wrong with the table of its normalizer
// or denormalizer (precompiled_charsmap): a search for some text in it could read other memory.
// Bytes that are no ModelProto have no table.
std::string charsmap_defect(std::string_view model);

}  // namespace perigee::text
