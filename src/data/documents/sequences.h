// Samples of one source of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/documents/corpus.h"
#include "data/token_files.h"

namespace perigee::data {

// The label of a token that is not learned, as cross entropy has it.
constexpr int64_t kIgnored = -100;

// Where a sample of S tokens is read to.
struct Row {
  int64_t* tokens;  // S
  int64_t* labels;  // S: the next token, or kIgnored
  // S each, or nullptr: the number of a token's document within the sample, from 0, and the place of
  // the token within the document, from 0. The padding after all documents counts as one more.
  int64_t* documents = nullptr;
  int64_t* positions = nullptr;
  int64_t* lengths = nullptr;  // one number, or nullptr: tokens that are not padding
  int64_t* label = nullptr;    // one number, or nullptr: the document's class
};

class Sequences {
 public:
  virtual ~Sequences() = default;
  virtual int64_t size() const = 0;
  // Reads a sample, below size(). Throws Error for an id beyond the limit.
  virtual void read(int64_t sample, const IdLimit& limit, const Row& row) const = 0;
};

// The documents of several files, one after the other.
class Documents {
 public:
  // Adds a file's documents.
  void add(const std::string& path, Corpus corpus);
  // Adds a file of tokens without documents, all of which are learned.
  void add(const std::string& path, TokenBytes tokens);
  void add_file(const std::string& path, int width);

  const Tokens& tokens() const { return tokens_; }
  int64_t count() const { return ends_.empty() ? 0 : ends_.back(); }
  // Returns the tokens of a document.
  TokenRange document(int64_t index) const;
  int64_t label(int64_t index) const;

  // Sets labels to kIgnored that are not learned. labels[i] is token `first` + i.
  void hide_unlearned(int64_t first, int64_t length, int64_t* labels) const;

  bool all_learned() const;
  // Returns whether a token of [begin, end) is learned.
  bool any_learned(TokenRange range) const;

 private:
  struct Part {
    int64_t first_token = 0;
    Corpus corpus;
  };
  const Part& part_of(int64_t document, int64_t& within) const;

  Tokens tokens_;
  std::vector<Part> parts_;
  std::vector<int64_t> ends_;        // of the parts, in documents
  std::vector<int64_t> token_ends_;  // of the parts, in tokens
};

// Samples of a stream: windows of `sequence` + 1 tokens, each beginning with the last one of the
// window before. A window in which nothing is learned is left out.
std::unique_ptr<Sequences> make_stream(std::shared_ptr<const Documents> documents,
                                       int64_t sequence);

// Samples of whole documents. A longer document is cut; a part in which nothing is learned is left
// out. `apart`: each sample has one document, else as many as fit: a document goes to the fullest of
// the open samples that it fits in (best fit, with kOpenSamples open).
std::unique_ptr<Sequences> make_packed(std::shared_ptr<const Documents> documents, int64_t sequence,
                                       bool apart);
constexpr size_t kOpenSamples = 64;

// Samples of one document each with its class; a longer document loses its end.
std::unique_ptr<Sequences> make_classified(std::shared_ptr<const Documents> documents,
                                           int64_t sequence);

}  // namespace perigee::data
