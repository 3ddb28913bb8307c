#include <algorithm>
#include <numeric>

#include "data/documents/sequences.h"

namespace perigee::data {
namespace {

// A part of a document in a sample.
struct Piece {
  uint64_t begin = 0;   // its first token
  uint32_t length = 0;  // at most the sample's tokens
  bool more = false;    // whether the document goes on after it
};

// Samples as lists of pieces.
struct Packing {
  std::vector<Piece> pieces;
  std::vector<uint64_t> ends;  // of the samples, in pieces

  void add(const std::vector<Piece>& sample) {
    pieces.insert(pieces.end(), sample.begin(), sample.end());
    ends.push_back(pieces.size());
  }
};

// Calls `take` with the pieces of each document in which something is learned.
template <class Take>
void each_piece(const Documents& documents, int64_t sequence, const Take& take) {
  const auto longest = static_cast<uint64_t>(sequence);
  for (int64_t i = 0; i < documents.count(); ++i) {
    const auto [begin, end] = documents.document(i);
    for (auto at = begin; at < end; at += longest) {
      const auto length = std::min(longest, end - at);
      const bool more = at + length < end;
      const bool learns = documents.any_learned({at + 1, at + length + (more ? 1 : 0)});
      if (learns) take(Piece{at, static_cast<uint32_t>(length), more});
    }
  }
}

// The samples that are not full yet.
class OpenSamples {
 public:
  OpenSamples(int64_t sequence, Packing& packing) : sequence_(sequence), packing_(packing) {}

  void add(const Piece& piece) {
    auto* best = fullest_with(piece.length);
    if (!best) {
      if (open_.size() == kOpenSamples) close(fullest_with(0));
      best = &open_.emplace_back();
    }
    best->pieces.push_back(piece);
    best->tokens += piece.length;
    if (best->tokens == sequence_) close(best);
  }
  void finish() {
    for (const auto& sample : open_) packing_.add(sample.pieces);
    open_.clear();
  }

 private:
  struct Sample {
    std::vector<Piece> pieces;
    int64_t tokens = 0;
  };

  // Returns the first of the fullest samples with room for so many tokens, or nullptr.
  Sample* fullest_with(int64_t tokens) {
    Sample* best = nullptr;
    for (auto& sample : open_) {
      if (sample.tokens + tokens <= sequence_ && (!best || sample.tokens > best->tokens)) {
        best = &sample;
      }
    }
    return best;
  }
  void close(Sample* sample) {
    packing_.add(sample->pieces);
    open_.erase(open_.begin() + (sample - open_.data()));
  }

  int64_t sequence_;
  Packing& packing_;
  std::vector<Sample> open_;  // in the order in which they were opened
};

class Packed : public Sequences {
 public:
  Packed(std::shared_ptr<const Documents> documents, int64_t sequence, bool apart)
      : documents_(std::move(documents)), sequence_(sequence) {
    OpenSamples open(sequence, packing_);
    each_piece(*documents_, sequence,
               [&](const Piece& piece) { apart ? packing_.add({piece}) : open.add(piece); });
    open.finish();
  }

  int64_t size() const override { return std::ssize(packing_.ends); }

  void read(int64_t sample, const IdLimit& limit, const Row& row) const override {
    const auto index = static_cast<size_t>(sample);
    int64_t at = 0, number = 0;
    std::vector<int64_t> ids(static_cast<size_t>(sequence_ + 1));
    for (auto i = index == 0 ? 0 : packing_.ends[index - 1]; i < packing_.ends[index]; ++i) {
      const auto& piece = packing_.pieces[i];
      const auto begin = static_cast<int64_t>(piece.begin);
      const int64_t length = piece.length;
      documents_->tokens().read(begin, length + (piece.more ? 1 : 0), limit, ids.data());
      if (!piece.more) ids[static_cast<size_t>(length)] = kIgnored;
      std::copy_n(ids.begin(), length, row.tokens + at);
      std::copy_n(ids.begin() + 1, length, row.labels + at);
      const auto labels = length - (piece.more ? 0 : 1);
      documents_->hide_unlearned(begin + 1, labels, row.labels + at);
      place(row, at, length, number++);
      at += length;
    }
    if (row.lengths) *row.lengths = at;
    std::fill(row.tokens + at, row.tokens + sequence_, 0);
    std::fill(row.labels + at, row.labels + sequence_, kIgnored);
    place(row, at, sequence_ - at, number);
  }

 private:
  // Numbers the tokens of a document.
  static void place(const Row& row, int64_t at, int64_t length, int64_t number) {
    if (row.documents) std::fill_n(row.documents + at, length, number);
    if (row.positions) std::iota(row.positions + at, row.positions + at + length, int64_t{0});
  }

  std::shared_ptr<const Documents> documents_;
  int64_t sequence_;
  Packing packing_;
};

class Classified : public Sequences {
 public:
  Classified(std::shared_ptr<const Documents> documents, int64_t sequence)
      : documents_(std::move(documents)), sequence_(sequence) {}

  int64_t size() const override { return documents_->count(); }

  void read(int64_t sample, const IdLimit& limit, const Row& row) const override {
    const auto [begin, end] = documents_->document(sample);
    const auto length = std::min(static_cast<int64_t>(end - begin), sequence_);
    documents_->tokens().read(static_cast<int64_t>(begin), length, limit, row.tokens);
    std::fill(row.tokens + length, row.tokens + sequence_, 0);
    if (row.lengths) *row.lengths = length;
    if (row.label) *row.label = documents_->label(sample);
  }

 private:
  std::shared_ptr<const Documents> documents_;
  int64_t sequence_;
};

}  // namespace

std::unique_ptr<Sequences> make_packed(std::shared_ptr<const Documents> documents, int64_t sequence,
                                       bool apart) {
  return std::make_unique<Packed>(std::move(documents), sequence, apart);
}

std::unique_ptr<Sequences> make_classified(std::shared_ptr<const Documents> documents,
                                           int64_t sequence) {
  return std::make_unique<Classified>(std::move(documents), sequence);
}

}  // namespace perigee::data
