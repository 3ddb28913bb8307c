// Pre-tokenizers that split by a regular expression.
#include <algorithm>

#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/regex/regex.h"
#include "text/tokenizers/replace.h"

namespace perigee::text {
namespace {

enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// A part of a piece: a match, or the text between matches.
struct Span {
  size_t begin, end;
  bool match;
};

class Split : public PreTokenizer {
 public:
  Split(Regex regex, Behavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  void split(Pieces& pieces) const override {
    std::vector<Piece> result;
    std::vector<Span> spans;
    for (const auto& piece : pieces.list) {
      spans.clear();
      size_t done = 0;
      regex_.find_all(piece.text, [&](size_t begin, size_t end) {
        if (begin > done) spans.push_back({done, begin, invert_});
        spans.push_back({begin, end, !invert_});
        done = end;
      });
      if (done < piece.text.size()) spans.push_back({done, piece.text.size(), invert_});
      merge(spans);
      for (const auto& span : spans) {
        if (span.begin == span.end || (behavior_ == Behavior::removed && span.match)) continue;
        const bool begins = span.begin == 0;
        result.push_back({piece.text.substr(span.begin, span.end - span.begin),
                          piece.first && begins, piece.continued && begins});
      }
    }
    pieces.list = std::move(result);
  }

  Cut cut(char32_t& a, char32_t& b) const override {
    if (!regex_.separates(a, b)) return Cut::unknown;
    const bool ignored = regex_.ignores(b);
    if (behavior_ == Behavior::removed && invert_ && ignored) return Cut::boundary;
    if ((behavior_ == Behavior::removed || behavior_ == Behavior::isolated) &&
        regex_.begins_at(a, b)) {
      return Cut::boundary;
    }
    return ignored && regex_.ignores(a) ? Cut::joined : Cut::unknown;
  }

 private:
  void merge(std::vector<Span>& spans) const {
    const bool next = behavior_ == Behavior::merged_with_next;
    const bool contiguous = behavior_ == Behavior::contiguous;
    if (behavior_ == Behavior::isolated || behavior_ == Behavior::removed) return;
    if (next) std::reverse(spans.begin(), spans.end());
    std::vector<Span> merged;
    bool before = false;
    for (const auto& span : spans) {
      const bool joins = contiguous ? span.match == before : span.match && !before;
      if (joins && !merged.empty()) {
        (next ? merged.back().begin : merged.back().end) = next ? span.begin : span.end;
      } else {
        merged.push_back(span);
      }
      before = span.match;
    }
    if (next) std::reverse(merged.begin(), merged.end());
    spans = std::move(merged);
  }

  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_split(const Reader& json) {
  const auto name = json.kind("behavior",
                              "Isolated Removed MergedWithPrevious MergedWithNext Contiguous");
  const auto behavior = name == "Isolated"             ? Behavior::isolated
                        : name == "Removed"            ? Behavior::removed
                        : name == "MergedWithPrevious" ? Behavior::merged_with_previous
                        : name == "MergedWithNext"     ? Behavior::merged_with_next
                                                       : Behavior::contiguous;
  return std::make_unique<Split>(make_regex(json.at("pattern")), behavior,
                                 json.flag("invert", false));
}

std::unique_ptr<PreTokenizer> make_whitespace() {
  return std::make_unique<Split>(Regex("\\w+|[^\\w\\s]+", "Whitespace", true), Behavior::removed,
                                 true);
}

std::unique_ptr<PreTokenizer> make_gpt2_split() {
  return std::make_unique<Split>(
      Regex("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
            "ByteLevel"),
      Behavior::isolated, false);
}

}  // namespace perigee::text
