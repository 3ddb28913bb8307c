#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "data/documents/sequences.h"

namespace perigee::data {
namespace {

class Stream : public Sequences {
 public:
  Stream(std::shared_ptr<const Documents> documents, int64_t sequence)
      : documents_(std::move(documents)), sequence_(sequence) {
    if (documents_->all_learned()) return;
    std::vector<int64_t> learned;
    for (int64_t i = 0; i < windows(); ++i) {
      const auto first = static_cast<uint64_t>(i * sequence_ + 1);
      const TokenRange labels{first, first + static_cast<uint64_t>(sequence_)};
      if (documents_->any_learned(labels)) learned.push_back(i);
    }
    if (std::ssize(learned) < windows()) learned_ = std::move(learned);
  }

  int64_t size() const override { return learned_ ? std::ssize(*learned_) : windows(); }

  void read(int64_t sample, const IdLimit& limit, const Row& row) const override {
    std::vector<int64_t> window(static_cast<size_t>(sequence_ + 1));
    const auto first = (learned_ ? (*learned_)[static_cast<size_t>(sample)] : sample) * sequence_;
    documents_->tokens().read(first, sequence_ + 1, limit, window.data());
    const auto bytes = static_cast<size_t>(sequence_) * sizeof(int64_t);
    std::memcpy(row.tokens, window.data(), bytes);
    std::memcpy(row.labels, window.data() + 1, bytes);
    documents_->hide_unlearned(first + 1, sequence_, row.labels);
    if (row.lengths) *row.lengths = sequence_;
  }

 private:
  int64_t windows() const {
    return std::max<int64_t>(0, (documents_->tokens().size() - 1) / sequence_);
  }

  std::shared_ptr<const Documents> documents_;
  int64_t sequence_;
  std::optional<std::vector<int64_t>> learned_;  // windows with a learned label; nothing: all
};

// Returns the first answer that ends after a token.
std::span<const TokenRange>::iterator answer_after(const Corpus& corpus, uint64_t token) {
  return std::ranges::upper_bound(corpus.answers, token, {}, &TokenRange::end);
}

}  // namespace

void Documents::add(const std::string& path, Corpus corpus) {
  parts_.push_back({tokens_.size(), std::move(corpus)});
  const auto& added = parts_.back().corpus;
  tokens_.add(path, added.tokens);
  ends_.push_back(count() + std::ssize(added.ends));
  token_ends_.push_back(tokens_.size());
}

void Documents::add(const std::string& path, TokenBytes tokens) {
  add(path, Corpus{.tokens = std::move(tokens)});
}

void Documents::add_file(const std::string& path, int width) {
  parts_.push_back({tokens_.size(), {}});
  tokens_.add_file(path, width);
  ends_.push_back(count());
  token_ends_.push_back(tokens_.size());
}

const Documents::Part& Documents::part_of(int64_t document, int64_t& within) const {
  const auto part = std::ranges::upper_bound(ends_, document) - ends_.begin();
  within = document - (part == 0 ? 0 : ends_[static_cast<size_t>(part - 1)]);
  return parts_[static_cast<size_t>(part)];
}

TokenRange Documents::document(int64_t index) const {
  int64_t within = 0;
  const auto& [first, corpus] = part_of(index, within);
  const auto begin = within == 0 ? 0 : corpus.ends[static_cast<size_t>(within - 1)];
  const auto offset = static_cast<uint64_t>(first);
  return {offset + begin, offset + corpus.ends[static_cast<size_t>(within)]};
}

int64_t Documents::label(int64_t index) const {
  int64_t within = 0;
  const auto& labels = part_of(index, within).corpus.labels;
  return labels[static_cast<size_t>(within)];
}

void Documents::hide_unlearned(int64_t first, int64_t length, int64_t* labels) const {
  auto at = static_cast<size_t>(std::ranges::upper_bound(token_ends_, first) - token_ends_.begin());
  for (; at < parts_.size() && parts_[at].first_token < first + length; ++at) {
    const auto& [offset, corpus] = parts_[at];
    if (!corpus.only_answers) continue;
    const auto begin = std::max(first, offset);
    const auto end = std::min(first + length, token_ends_[at]);
    auto answer = answer_after(corpus, static_cast<uint64_t>(begin - offset));
    for (auto token = begin; token < end; ++token) {
      const auto own = static_cast<uint64_t>(token - offset);
      while (answer != corpus.answers.end() && answer->end <= own) ++answer;
      const bool learned = answer != corpus.answers.end() && answer->begin <= own;
      if (!learned) labels[token - first] = kIgnored;
    }
  }
}

bool Documents::all_learned() const {
  return std::ranges::none_of(parts_, [](const Part& part) { return part.corpus.only_answers; });
}

bool Documents::any_learned(TokenRange range) const {
  const auto first = static_cast<int64_t>(range.begin), end = static_cast<int64_t>(range.end);
  auto at = static_cast<size_t>(std::ranges::upper_bound(token_ends_, first) - token_ends_.begin());
  for (; first < end && at < parts_.size() && parts_[at].first_token < end; ++at) {
    const auto& [offset, corpus] = parts_[at];
    if (!corpus.only_answers) return true;
    const auto begin = std::max(first, offset) - offset;
    const auto answer = answer_after(corpus, static_cast<uint64_t>(begin));
    if (answer != corpus.answers.end() && static_cast<int64_t>(answer->begin) + offset < end) {
      return true;
    }
  }
  return false;
}

std::unique_ptr<Sequences> make_stream(std::shared_ptr<const Documents> documents,
                                       int64_t sequence) {
  return std::make_unique<Stream>(std::move(documents), sequence);
}

}  // namespace perigee::data
