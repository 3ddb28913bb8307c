// Token files (data/token_files.h): the first byte chooses the width of an id, the second the
// vocabulary, the third the place where the file is cut in two.
#include <algorithm>
#include <vector>

#include "data/token_files.h"
#include "tests/fuzz/target.h"

using namespace perigee;

PERIGEE_FUZZ_TARGET(tokens) {
  if (input.size() < 3) return;
  constexpr int kWidths[] = {1, 2, 4};
  const int width = kWidths[static_cast<uint8_t>(input[0]) % 3];
  const int64_t vocab = int64_t{1} << (static_cast<uint8_t>(input[1]) % 33);
  const data::IdLimit limit{vocab, "the vocabulary"};
  const auto bytes = input.substr(3);
  const auto cut = std::min<size_t>(static_cast<uint8_t>(input[2]), bytes.size());
  data::Tokens tokens;
  tokens.add_file(fuzz::scratch_file("first.bin", bytes.substr(0, cut)), width);
  tokens.add_file(fuzz::scratch_file("second.bin", bytes.substr(cut)), width);
  fuzz::require(tokens.size() * width == static_cast<int64_t>(bytes.size()), "tokens are lost");
  std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
  tokens.read(0, tokens.size(), limit, all.data());
  for (const auto id : all) fuzz::require(id >= 0 && id < vocab, "an id beyond the vocabulary");
  const auto half = tokens.size() / 2;
  std::vector<int64_t> rest(static_cast<size_t>(tokens.size() - half));
  tokens.read(half, tokens.size() - half, limit, rest.data());
  fuzz::require(std::equal(rest.begin(), rest.end(), all.begin() + half), "parts differ");
}
