// The documents of a file as tokens, in the token cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "data/token_cache.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer.h"

namespace perigee::data {

// Tokens [begin, end) of a corpus.
struct TokenRange {
  uint64_t begin = 0, end = 0;
};

struct Corpus {
  TokenBytes tokens;               // of all documents, one after the other
  std::span<const uint64_t> ends;  // of each document, in tokens
  // Of conversations: the tokens that are learned, in order.
  std::span<const TokenRange> answers;
  bool only_answers = false;
  std::span<const int64_t> labels;  // of each document, where they have classes
  int64_t skipped = 0;              // broken lines
  std::string first_skipped;        // the first of them, and why
};

// How a file becomes documents.
struct CorpusOptions {
  enum class Kind { text, jsonl, conversations } kind = Kind::jsonl;
  std::string tokenizer;      // its file, or "bytes"
  std::string document;       // jsonl: the template of fields
  std::string chat_template;  // conversations: its file; "": that of the tokenizer's folder
  int64_t end_of_text = 0;    // appended to a document that does not end with it
  bool skip_broken = false;
  bool labels = false;  // jsonl: read the field "label"
};

// Returns the documents of a file. They are cached under a name that follows from the content of the
// files and the options. Throws Error naming file and line for a broken line that is not skipped.
Corpus open_corpus(const std::string& path, const text::Tokenizer& tokenizer,
                   const CorpusOptions& options, const TokenCache& cache);

}  // namespace perigee::data
