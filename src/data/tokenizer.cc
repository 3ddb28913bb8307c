#include "data/tokenizer.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/fail.h"

namespace perigee::data {
namespace {

class Bytes : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }
  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) text += static_cast<char>(token);
    return text;
  }
};

using Load = void (*)(const std::string& path, std::unique_ptr<Tokenizer>& tokenizer);

// Loads the plugin from the folder of the library that holds this function, once per process.
// RTLD_DEEPBIND: its symbols come before LibTorch's (src/data/sentencepiece).
Load load_sentencepiece() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load_sentencepiece), &self) == 0 || !self.dli_fname) {
    fail_run("data", "the folder of libperigee_torch.so must be known to find plugins beside it");
  }
  const auto path = std::filesystem::path(self.dli_fname).parent_path() /
                    "libperigee_sentencepiece.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  void* symbol = library ? dlsym(library, "perigee_sentencepiece") : nullptr;
  if (!symbol) {
    fail_run("data", "a SentencePiece tokenizer needs {}, but it does not load: {}", path.string(),
             dlerror());
  }
  return reinterpret_cast<Load>(symbol);
}

Load sentencepiece() {
  static const Load load = load_sentencepiece();
  return load;
}

}  // namespace

void open_sentencepiece() { sentencepiece(); }

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<Bytes>();
  std::unique_ptr<Tokenizer> tokenizer;
  sentencepiece()(name, tokenizer);
  return tokenizer;
}

}  // namespace perigee::data
