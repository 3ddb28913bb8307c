#include "text/chat/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/files/durable_file.h"

namespace perigee::text {
namespace {

std::string_view bytes_of(const std::vector<int64_t>& row) {
  static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");
  return {reinterpret_cast<const char*>(row.data()), row.size() * sizeof(int64_t)};
}

}  // namespace

void Samples::add(const Document& conversation) {
  const auto longest = size_t(sequence_) + 1;
  const auto size = std::min(conversation.ids.size(), longest);
  std::vector<bool> of_answers(size);
  int64_t learned = 0;
  for (const auto& answer : conversation.answers) {
    // The first token of a sample is no label.
    for (size_t i = std::max<size_t>(answer.begin, 1); i < std::min(answer.end, size); ++i) {
      of_answers[i] = true;
      ++learned;
    }
  }
  if (learned == 0) {
    ++left_out_;
    return;
  }
  cut_ += conversation.ids.size() > longest ? 1 : 0;
  learned_ += learned;
  ids_.insert(ids_.end(), conversation.ids.begin(), conversation.ids.begin() + size);
  of_answers_.insert(of_answers_.end(), of_answers.begin(), of_answers.end());
  ends_.push_back(ids_.size());
}

void Samples::write(const std::string& path) const {
  if (ends_.empty()) {
    fail("data", "conversations must have an answer within {} tokens, but none has", sequence_ + 1);
  }
  const auto bytes = uint64_t(size()) * sequence_ * sizeof(int64_t);
  nlohmann::ordered_json header;
  for (const auto* name : {"tokens", "labels"}) {
    const uint64_t begin = header.empty() ? 0 : bytes;
    header[name] = {
        {"dtype", "I64"}, {"shape", {size(), sequence_}}, {"data_offsets", {begin, begin + bytes}}};
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  DurableFile file(path);
  const uint64_t length = text.size();
  file.write({reinterpret_cast<const char*>(&length), sizeof length});
  file.write(text);
  for (const bool labels : {false, true}) {
    for (size_t sample = 0, begin = 0; sample < ends_.size(); begin = ends_[sample++]) {
      std::vector<int64_t> row(sequence_, labels ? kIgnored : 0);
      for (size_t i = begin; i < ends_[sample]; ++i) {
        const auto place = int64_t(i - begin) - (labels ? 1 : 0);
        if (place < 0 || place >= sequence_ || (labels && !of_answers_[i])) continue;
        row[place] = ids_[i];
      }
      file.write(bytes_of(row));
    }
  }
  file.finish();
}

}  // namespace perigee::text
