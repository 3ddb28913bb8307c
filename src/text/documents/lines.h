// Files of JSON lines, each of which is a document.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "text/jinja/template.h"

namespace perigee::text {

using jinja::Span;

// A document as tokens.
struct Document {
  std::vector<int64_t> ids;
  // Places in `ids`, in order, of the answers; of a conversation only these are learned.
  std::vector<Span> answers;
  int64_t label = -1;  // its class; -1: none
};

struct LineOptions {
  bool skip_broken = false;  // lines that give no document are left out
  bool progress = false;     // of a large file, on the terminal
};

struct LinesRead {
  int64_t documents = 0;
  int64_t skipped = 0;
  std::string first_skipped;  // why the first of these gives no document: "line 7: ..."
};

// Encodes the lines of a file (open_bytes) on all cores, and gives them to `take` in their order.
// `encode` throws Error for a line that gives no document. Empty lines do not count. Memory does
// not grow with the file. Throws Error naming file and line for a line that is no JSON, or that
// `encode` refuses, unless these are skipped.
LinesRead encode_lines(const std::string& file, const LineOptions& options,
                       const std::function<Document(const nlohmann::ordered_json&)>& encode,
                       const std::function<void(Document&&)>& take);

}  // namespace perigee::text
