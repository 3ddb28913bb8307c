// The text of tokens that a model generates one after the other.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace perigee::text {

// Decodes tokens as they come: a character that several tokens make is given when it is complete,
// and text that may be the beginning of a stop string when it is known not to be one.
class Reply {
 public:
  // `before`: the tokens that the new ones follow; their text is not given. `stops`: texts that end
  // the reply; none is empty.
  Reply(const Tokenizer& tokenizer, std::span<const int64_t> before,
        std::vector<std::string> stops = {});

  // Adds a token and returns the text that is certain now. After a stop string: "".
  std::string add(int64_t token);
  // Returns the text that add() has not returned yet.
  std::string end();
  // Whether a stop string was found; the text ends before it.
  bool stopped() const { return stopped_; }

 private:
  std::string certain(bool last);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  std::vector<int64_t> tokens_;  // the last ones
  size_t given_ = 0;             // bytes of their text that are in held_ or given
  size_t waiting_ = 0;           // tokens since text was last certain
  std::string held_;
  bool stopped_ = false;
};

}  // namespace perigee::text
