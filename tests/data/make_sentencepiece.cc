// make_sentencepiece TEXT PREFIX: trains PREFIX.model, 60 pieces by byte pair encoding.
#include <sentencepiece_trainer.h>

#include <string>

int main(int, char** argv) {
  const auto trained = sentencepiece::SentencePieceTrainer::Train(
      std::string("--vocab_size=60 --model_type=bpe --minloglevel=3 --input=") + argv[1] +
      " --model_prefix=" + argv[2]);
  return trained.ok() ? 0 : 1;
}
