#include "text/tokenizers/tables/vocabulary.h"

#include <fmt/format.h>

namespace perigee::text {

Vocabulary::Vocabulary(const Reader& json) : ids_(json.value().size()) {
  if (!json.value().is_object()) {
    json.wrong("an object", fmt::format("is {}", json.value().type_name()));
  }
  // Ids may have gaps, but no id takes more memory than the file explains.
  const auto most = 65'536 + 16 * json.value().size();
  for (const auto& [token, id] : json.value().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= most) {
      json.wrong(fmt::format("ids from 0 to {}", most - 1),
                 fmt::format("\"{}\" has {}", token, id.is_number() ? id.dump() : id.type_name()));
    }
    add(token, id.get<int64_t>());
  }
}

void Vocabulary::add(std::string_view token, int64_t id) {
  ids_.set(token, id);
  if (tokens_.size() <= size_t(id)) tokens_.resize(size_t(id) + 1);
  auto& known = tokens_[size_t(id)];
  shared_ = shared_ || (!known.empty() && known != token);
  known = token;
}

}  // namespace perigee::text
