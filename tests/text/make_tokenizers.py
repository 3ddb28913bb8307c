#!/usr/bin/env python3
# Trains tokenizers on a mixed text and writes their files, with the ids and decoded texts of PyPI's tokenizers.
#   make_tokenizers.py FOLDER ENVIRONMENT [CHARSMAP]
# ENVIRONMENT: a folder that keeps the packages between tests. Exits with 77 where they cannot be installed.
# CHARSMAP: a SentencePiece model, whose table of replacements becomes a normalizer "Precompiled".
#   make_tokenizers.py FOLDER ENVIRONMENT --time NAME   prints the seconds in which the text of FOLDER is encoded
# FOLDER gets text.txt (1 MB), and for each tokenizer NAME.json, NAME.ids (JSON), NAME.txt (its decoded text).
import base64
import json
import os
import pathlib
import random
import sys
import time

sys.path.insert(0, "tests/support")
import packages

os.environ.setdefault("RAYON_NUM_THREADS", "2")
PACKAGES = ["tokenizers==0.23.3"]
SCRIPTS = {  # ranges of letters
    "latin": "abcdefghijklmnopqrstuvwxyz", "accents": "àéîõüçñåøßœğışžłőươạểÅÉİĲﬁ", "greek": (0x3B1, 0x3C9), "cyrillic": (0x430, 0x44F),
    "hebrew": (0x5D0, 0x5EA), "arabic": (0x621, 0x64A), "devanagari": (0x905, 0x94D), "thai": (0xE01, 0xE3A),
    "han": (0x4E00, 0x4F60), "kana": (0x3041, 0x30F6), "halfwidth": (0xFF66, 0xFF9F), "hangul": (0xAC00, 0xAD00), "jamo": (0x1100, 0x1112),
    "georgian": (0x10D0, 0x10F0), "math": (0x1D400, 0x1D440),
}
OTHERS = ["🙂", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪", "❤️", "🫠", "①", "½", "Ⅷ", "٣", "१२", "²", "…", "—", "“q”", "«x»", "。", "、", "！", "¿", "€", "$5.20", "1234567",
          "3.14", "0xFF", "it's", "We'LL", "you'RE", "I'ſ", "don't", "e\u0301", "o\u0308\u0323", "\u200b", "\u200d", "\ufeff", "\u00ad", "\u180e",
          "\u0001", "\u007f", "\u0085", "\u2028", "\u00a0", "\u3000", "\u202f", "\t", "\r\n", "\n\n", "   ", "        ", "\u0000", "\ufffd", "\u2581",
          "\u0600a", "क्ष", "ﷺ", "Å", "K", "Ⓐ", "_x_", "‿", "<|endoftext|>", "<s>", "</s>", "[MASK]", "<mask>", "[UNK]", "<unk>",
          "<|tool|>", "##ing", "<0x0A>", "\U000e0001", "\ue000", "日本語テキスト", "don’t", "ﾊﾟ", "ΑΣ", "Straße"]


def words(rng, script, count):
    letters = SCRIPTS[script]
    letters = letters if isinstance(letters, str) else [chr(c) for c in range(letters[0], letters[1] + 1)]
    made = ["".join(rng.choice(letters) for _ in range(rng.randint(1, 8))) for _ in range(60)]
    chosen = [rng.choice(made) for _ in range(count)]
    return [w.capitalize() if rng.random() < 0.2 else w.upper() if rng.random() < 0.05 else w for w in chosen]


CODE = ["{i}if ({a} == {n}) {{\n{i}  {b}.{a}(\"{w} {w}\", {n}.{n}f);  // {w} {w} {w}\n{i}}}\n", "def {a}(self, {b}={n}):\n    return [{a}_{b} for {b} in {a} if {b} != '{w}']\n",
        "{i}auto& {a}{b} = {b}->{a}<int{n}_t>({n} * {a}[{n}] + 0x{n}ul);\n", "#include <{a}/{b}.h>\n", "{i}<{a} class='{b}'>{w}&nbsp;{w}</{a}>\n", "| {a} | `{b} --{a}={n}` | {w} {w}. |\n",
        "{{\"{a}\": [{n}, -{n}.{n}e-{n}, null], \"{b}\": {{\"{w}\": true}}}}\n", "SELECT {a}, COUNT(*) FROM {b} WHERE {a} >= {n} AND {b} LIKE '%{w}%';\n", "\t{a}\t{b}\t\t{n}\r\n"]


def code(rng, names):
    fill = {key: rng.choice(names) for key in "abw"}
    return rng.choice(CODE).format(i=" " * rng.choice([0, 2, 4, 8, 12]), n=rng.randrange(10 ** rng.randint(1, 6)), **fill)


# A text of at least `size` bytes: code, words of many scripts, symbols and odd spaces.
def mixed_text(size):
    rng = random.Random(7)
    names = [w for _ in range(5) for w in words(rng, "latin", 40)] + ["the", "value", "size_t", "tokenizer", "isReady", "HTTPServer", "Perigee", "don't", "their's", "x86_64"]
    parts, bytes_made = [], 0
    while bytes_made < size:
        kind = rng.random()
        if kind < 0.2:
            part = "".join(code(rng, names) for _ in range(rng.randint(1, 30)))
        elif kind < 0.9:
            script = rng.choice(list(SCRIPTS))
            space = "" if script in ("han", "kana", "thai") and rng.random() < 0.7 else " "
            part = space.join(words(rng, script, rng.randint(5, 60))) + rng.choice([". ", ", ", "\n", "!\n\n", "? ", "。", ": "])
        else:
            part = rng.choice(["", " "]).join(rng.choice(OTHERS) for _ in range(rng.randint(1, 12)))
        if rng.random() < 0.08:
            part += rng.choice(OTHERS) * rng.randint(1, 6)
        parts.append(part)
        bytes_made += len(part.encode())
    return "".join(parts)


GPT4 = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


# Returns the table of replacements of a SentencePiece model: field 2 of field 3 of its protobuf.
def charsmap(model):
    def fields(data):
        at = 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 2:
                length = varint()
                yield key >> 3, data[at:at + length]
                at += length
            elif key & 7 == 0:
                varint()
            else:
                at += 8 if key & 7 == 1 else 4
    for number, spec in fields(pathlib.Path(model).read_bytes()):
        if number == 3:
            return dict(fields(spec))[2]


# A tokenizer with a score of so many digits that serde_json reads another double than the nearest one, which decides between "aa" and "a" "a".
def inexact():
    rng = random.Random(3)
    while True:
        digits = rng.randrange(10 ** 16, 10 ** 17)
        score, read = -float(f"{digits}e-16"), -digits / 1e16
        double = repr(2 * score)
        if read > score and -float(double[1:].replace(".", "")) / 10.0 ** len(double.split(".")[1]) == 2 * score:
            vocab = [["<unk>", 0], ["a", score], ["aa", 2 * score]]
            return {"version": "1.0", "added_tokens": [], "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}}


def make(text, table):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    lines = text.splitlines(keepends=True)[::3]
    made = {}

    def add(name, model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, added=(), special=(), then=None, change=None):
        tokenizer = Tokenizer(model)
        if normalizer:
            tokenizer.normalizer = normalizer
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.train_from_iterator(lines, trainer)
        if decoder:
            tokenizer.decoder = decoder
        if added:
            tokenizer.add_tokens(list(added))
        if special:
            tokenizer.add_special_tokens(list(special))
        data = json.loads(tokenizer.to_str())
        if change:
            change(data)
        made[name] = data

    def bpe(**options):
        return trainers.BpeTrainer(vocab_size=2500, show_progress=False, **options)

    def split(pattern, behavior="isolated", invert=False):
        return pre_tokenizers.Split(Regex(pattern), behavior, invert)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    add("gpt2", models.BPE(), bpe(initial_alphabet=alphabet, special_tokens=["<|endoftext|>"]), None, pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel())
    add("roberta", models.BPE(), bpe(initial_alphabet=alphabet), None, pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel(),
        special=[AddedToken("<mask>", lstrip=True, special=True), "<s>", "</s>"])
    add("llama3", models.BPE(), bpe(initial_alphabet=alphabet), None, pre_tokenizers.Sequence([split(LLAMA3), level]), decoders.ByteLevel(),
        special=["<|endoftext|>", "<|tool|>"], change=lambda d: d["model"].update(ignore_merges=True))
    add("qwen", models.BPE(), bpe(initial_alphabet=alphabet), normalizers.NFC(), pre_tokenizers.Sequence([split(QWEN), level]), decoders.ByteLevel(),
        added=[AddedToken("Perigee"), AddedToken("the", single_word=True), AddedToken("Å", rstrip=True)], special=["<|endoftext|>"])
    add("gpt4", models.BPE(), bpe(initial_alphabet=alphabet), None, pre_tokenizers.Sequence([split(GPT4), level]), decoders.ByteLevel())
    add("deepseek", models.BPE(), bpe(initial_alphabet=alphabet), None,
        pre_tokenizers.Sequence([split(r"[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯ]+"), split(r"[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(True), level]),
        decoders.ByteLevel())

    def llama2(data):
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
        data["pre_tokenizer"] = None
        data["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    add("llama2", models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True), bpe(special_tokens=["<unk>", "<s>", "</s>", *fallback], limit_alphabet=300), None,
        pre_tokenizers.Metaspace(), change=lambda d: (llama2(d), d.update(added_tokens=d["added_tokens"][:3])))
    made["llama2_metaspace"] = json.loads(json.dumps(made["llama2"]))
    made["llama2_metaspace"].update(normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False})
    add("bert", models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=2500, show_progress=False, special_tokens=["[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
        normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())
    add("bert_cased", models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20),
        trainers.WordPieceTrainer(vocab_size=2500, show_progress=False, special_tokens=["[UNK]", "[MASK]"]),
        normalizers.BertNormalizer(lowercase=False, strip_accents=False), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False))

    def unigram(**options):
        return trainers.UnigramTrainer(vocab_size=2500, show_progress=False, n_sub_iterations=1, special_tokens=["<unk>", "</s>"], unk_token="<unk>", **options)
    add("t5", models.Unigram(), unigram(), normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Metaspace(), decoders.Metaspace())

    def fall_back(data):
        data["model"]["vocab"] += [[token, -20.0] for token in fallback]
        data["model"]["byte_fallback"] = True
        if table:
            data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}
    add("xlm", models.Unigram(), unigram(), None, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), change=fall_back)
    add("words", models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=3000, show_progress=False, special_tokens=["[UNK]"]),
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=False)]))
    add("pieces", models.WordLevel(unk_token="[UNK]"), trainers.WordLevelTrainer(vocab_size=3000, show_progress=False, special_tokens=["[UNK]"]),
        normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.Replace("ab", "b")]),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), split(r"\s", "merged_with_next"), split("[aeiou]", "merged_with_previous"),
                                 split(r"\b", "isolated"), pre_tokenizers.CharDelimiterSplit("x"), pre_tokenizers.FixedLength(5), split(r"(?<=\d)\w|\W+$", "removed", True)]),
        decoders.Fuse())
    add("clip", models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), bpe(special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=200),
        normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        pre_tokenizers.Split(Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True), decoders.BPEDecoder())
    made["inexact"] = inexact()
    return made


def main():
    folder = pathlib.Path(sys.argv[1])
    packages.install(sys.argv[2], PACKAGES, ["--no-deps"])
    from tokenizers import Tokenizer
    if "--time" in sys.argv:
        tokenizer = Tokenizer.from_file(str(folder / f"{sys.argv[-1]}.json"))
        text = folder.joinpath("text.txt").read_bytes().decode()
        begin = time.perf_counter()
        tokenizer.encode(text, add_special_tokens=False)
        print(time.perf_counter() - begin)
        return
    text = mixed_text(1_000_000)
    folder.joinpath("text.txt").write_bytes(text.encode())
    for name, data in make(text, charsmap(sys.argv[3]) if len(sys.argv) > 3 else None).items():
        content = json.dumps(data, ensure_ascii=len(name) % 2 == 0)
        folder.joinpath(name + ".json").write_text(content)
        tokenizer = Tokenizer.from_str(content)
        ids = tokenizer.encode("aaaa" + text if name == "inexact" else text, add_special_tokens=False).ids
        folder.joinpath(name + ".ids").write_text(json.dumps(ids))
        folder.joinpath(name + ".txt").write_bytes(tokenizer.decode(ids, skip_special_tokens=False).encode())


main()
