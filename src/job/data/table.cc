// The rows of the table of keys of [data] and [[data.sources]].
#include "job/table.h"

#include <algorithm>

namespace perigee::job {
namespace {

// Returns whether a source of the job's data is of the kind.
bool has(const Job& job, std::vector<std::string> SourceConfig::*kind) {
  return std::ranges::any_of(job.data.token_sources(),
                             [&](const auto& source) { return !(source.*kind).empty(); });
}

}  // namespace

std::vector<JobKey> data_keys() {
  return {
      {.table = "data",
       .name = "text",
       .field = FIELD(j.data.text),
       .is_path = true,
       .about = "Text files (patterns), concatenated."},
      {.table = "data",
       .name = "tokens",
       .field = FIELD(j.data.tokens),
       .is_path = true,
       .about = "Files of raw little-endian token ids (patterns)."},
      {.table = "data",
       .name = "jsonl",
       .field = FIELD(j.data.jsonl),
       .is_path = true,
       .about = "Files of JSON lines (patterns), also compressed (.gz, .zst): each line is an "
                "object, which `template` makes a document."},
      {.table = "data",
       .name = "conversations",
       .field = FIELD(j.data.conversations),
       .is_path = true,
       .about = "Files of JSON lines (patterns), also compressed: each line is an object with "
                "`messages`, a document by the chat template. Only the model's answers are "
                "learned."},
      {.table = "data",
       .name = "tensors",
       .field = FIELD(j.data.tensors),
       .is_path = true,
       .about = "safetensors files (patterns) whose tensors, one row a sample, are bound to the "
                "model's inputs by name."},
      {.table = "data",
       .name = "synthetic",
       .field = FIELD(j.data.synthetic),
       .otherwise = "true without files",
       .about = "Random samples in place of files."},
      {.table = "data",
       .name = "token_type",
       .field = FIELD(j.data.token_type),
       .allowed = {"uint16", "uint32"},
       .about = "Type of the ids in `tokens`.",
       .needs = NEEDS("files of tokens", has(j, &SourceConfig::tokens))},
      {.table = "data",
       .name = "tokenizer",
       .field = FIELD(j.data.tokenizer),
       .is_path = true,
       .about =
           "\"bytes\", or the file of a tokenizer: a tokenizer.json or a SentencePiece model. "
           "With `kind = \"hf\"` and without this key, the tokenizer.json of the model's folder, "
           "if there is one."},
      {.table = "data",
       .name = "template",
       .field = FIELD(j.data.document),
       .about = "The document of a line of `jsonl`: `{name}` is the line's field of that name, a "
                "string or a number; `{{` and `}}` are braces.",
       .needs = NEEDS("files of jsonl", has(j, &SourceConfig::jsonl))},
      {.table = "data",
       .name = "chat_template",
       .field = FIELD(j.data.chat_template),
       .is_path = true,
       .otherwise = "that of the tokenizer's folder",
       .about = "File of the chat template of `conversations` (chat_templates.md)."},
      {.table = "data",
       .name = "end_of_text",
       .field = FIELD(j.data.end_of_text),
       .otherwise = "the tokenizer's own; of \"bytes\", the byte 0",
       .about = "The token that ends each document. Files of `text` have none in a stream, unless "
                "it is given."},
      {.table = "data",
       .name = "broken_lines",
       .field = FIELD(j.data.broken_lines),
       .allowed = {"error", "skip"},
       .about =
           "Whether a line that gives no document (no JSON, a field is missing, a conversation "
           "without an answer) is an error, or is left out and counted.",
       .needs = NEEDS("files of jsonl or conversations",
                      has(j, &SourceConfig::jsonl) || has(j, &SourceConfig::conversations))},
      {.table = "data",
       .name = "pack",
       .field = FIELD(j.data.pack),
       .allowed = {"stream", "documents", "none"},
       .about =
           "How documents become samples. stream: one after the other, cut every `sequence` "
           "tokens; documents: whole documents side by side, whose tokens do not attend to "
           "each other (the model has the inputs `documents` and `positions`); none: each in "
           "a sample of its own. A longer document is cut, the rest of a sample is not learned."},
      {.table = "data",
       .name = "sequence",
       .field = FIELD(j.data.sequence),
       .least = 1,
       .about = "Tokens of a sample."},
      {.table = "data",
       .name = "sampler",
       .field = FIELD(j.data.sampler),
       .is_path = true,
       .about =
           "Order of the training samples of files: \"shuffle\" (a permutation in each epoch), "
           "\"sequential\", \"random\" (drawn with replacement), or a library (.so) that exports "
           "`int64_t perigee_sampler(int64_t sample, int64_t count, uint64_t seed)`, which returns "
           "the index in [0, count) of the run's sample number `sample`."},
      {.table = "data",
       .name = "shuffle_buffer",
       .field = FIELD(j.data.shuffle_buffer),
       .least = 0,
       .about = "`sampler = \"shuffle\"`: samples that are shuffled with each other: so many "
                "consecutive ones, so that files are read almost in order; 0: all."},
      {.table = "data",
       .name = "objective",
       .field = FIELD(j.data.objective),
       .allowed = {"causal", "masked", "classification"},
       .about = "The labels. causal: the next token; masked: the tokens themselves at 15 % of the "
                "places, which are hidden as for BERT; classification: the field `label` of a line "
                "of `jsonl`, a number from 0."},
      {.table = "data",
       .name = "validation",
       .field = FIELD(j.data.validation),
       .least = 0,
       .less_than = 1,
       .about = "Share of the data that is held out for validation."},
      {.table = "data",
       .name = "batched",
       .field = FIELD(j.data.batched),
       .otherwise = "all",
       .about = "The model's inputs whose dim 0 is the samples, by name, or by index in the order "
                "of their names (\"0\"). The others are the same for all samples and are "
                "replicated over ranks and microbatches."},
      {.table = "data",
       .name = "slice_files",
       .field = FIELD(j.data.slice_files),
       .about =
           "Whether each data rank draws its samples only from files of its own: file i belongs to "
           "rank i modulo the number of data ranks. The samples of a step then depend on the "
           "number of ranks. With fewer files than data ranks, no file is sliced, with a warning."},
      {.table = "data",
       .name = "left_over",
       .field = FIELD(j.data.left_over),
       .allowed = {"share", "deal", "drop"},
       .about = "slice_files: how files beyond a multiple of the data ranks are used. share: no "
                "file is sliced, and all ranks draw from all samples; deal: some ranks have one "
                "file more; drop: they are not read."},
      {.table = "data.sources",
       .name = "name",
       .field = FIELD(s.name),
       .otherwise = "`source 1`, ...",
       .about = "Name in logs."},
      {.table = "data.sources",
       .name = "weight",
       .field = FIELD(s.weight),
       .more_than = 0,
       .about = "The source's share of the samples is its weight by the sum of all weights."},
      {.table = "data.sources",
       .name = "text",
       .field = FIELD(s.text),
       .is_path = true,
       .about = "Text files (patterns)."},
      {.table = "data.sources",
       .name = "tokens",
       .field = FIELD(s.tokens),
       .is_path = true,
       .about = "Files of token ids (patterns)."},
      {.table = "data.sources",
       .name = "jsonl",
       .field = FIELD(s.jsonl),
       .is_path = true,
       .about = "Files of JSON lines (patterns)."},
      {.table = "data.sources",
       .name = "conversations",
       .field = FIELD(s.conversations),
       .is_path = true,
       .about = "Files of conversations (patterns)."},
      {.table = "data.sources",
       .name = "template",
       .field = FIELD(s.document),
       .otherwise = "`data.template`",
       .about = "The document of a line of `jsonl`."}};
}

}  // namespace perigee::job
