#!/usr/bin/env python3
# Renders templates over conversations, and expressions, by PyPI's jinja2 with the settings of transformers.
#   make_renderings.py FOLDER ENVIRONMENT
# ENVIRONMENT: a folder that keeps the packages between tests. Exits with 77 where they cannot be installed.
# FOLDER gets renderings.json: [{"name", "template", "variables", "text", "generated"}]; "text" is null where jinja2 fails.
# "generated": the texts within {% generation %} as [begin, end], in bytes.
import json
import pathlib
import random
import sys
from datetime import datetime

sys.path.insert(0, "tests/support")
import packages

HERE = pathlib.Path("tests/text/jinja")
NOW = 1_700_000_000
WORDS = ["Hello", "the weather", "is it 21 °C?", "日本語", "🙂", "line\nline", "  spaces  ", "<|im_end|>", "{{ x }}", "it's \"so\"", "a\tb", "", "\\n", "</s>", "x" * 40]
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Tells \"the\" weather's state, é", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "the city"}, "days": {"type": "integer", "enum": [1, 2]}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}}, "required": []}}},
]


def environment():
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}
        spans = []

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller):
            return f"\0{caller()}\1"  # the places are found in the rendered text

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.fromtimestamp(NOW).strftime(form)
    return made


# Returns the text without marks, and the places of the marked parts.
def without_marks(text):
    out, spans, begin = bytearray(), [], 0
    for byte in text.encode():
        if byte == 0:
            begin = len(out)
        elif byte == 1:
            spans.append([begin, len(out)])
        else:
            out.append(byte)
    return out.decode(), spans


def rendering(env, name, template, variables):
    made = {"name": name, "template": template, "variables": variables, "text": None, "generated": []}
    try:
        made["text"], made["generated"] = without_marks(env.from_string(template).render(**variables))
    except Exception as error:
        made["error"] = f"{type(error).__name__}: {error}"
    return made


def sentence(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 5)))


def call(rng):
    arguments = rng.choice([{"city": sentence(rng), "days": 2}, {"a": 1.5, "b": [1, None, True]}, {}])
    return {"id": "".join(rng.choice("abcdefgh1") for _ in range(9)), "type": "function", "function": {"name": rng.choice(["weather", "add"]), "arguments": arguments}}


# `plain`: users and assistants alternate, with neither a system prompt nor tools.
def conversation(rng, plain=False):
    messages = []
    if not plain and rng.random() < 0.5:
        messages.append({"role": "system", "content": sentence(rng)})
    for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 4)):
        messages.append({"role": "user", "content": sentence(rng)})
        if not plain and rng.random() < 0.05:
            messages.append({"role": "user", "content": "twice"})
        if not plain and rng.random() < 0.3:
            calls = [call(rng) for _ in range(1 if rng.random() < 0.7 else 2)]
            messages.append({"role": "assistant", "content": rng.choice(["", sentence(rng), None]), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": each["id"], "name": each["function"]["name"], "content": rng.choice([sentence(rng), "{\"x\": 1}"])} for each in calls]
        if plain or rng.random() < 0.9:
            thought = rng.choice(["", "<think>\n" + sentence(rng) + "\n</think>\n\n"])
            messages.append({"role": "assistant", "content": thought + sentence(rng)})
    variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": rng.random() < 0.5}
    if not plain and rng.random() < 0.5:
        variables["tools"] = rng.choice([TOOLS, TOOLS[:1], None])
    if rng.random() < 0.2:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def main():
    folder = pathlib.Path(sys.argv[1])
    packages.install(sys.argv[2], ["jinja2==3.1.6", "markupsafe==3.0.4"], ["--no-deps"])
    env = environment()
    rng = random.Random(30)
    made = []
    for path in sorted(HERE.glob("templates/*.jinja")):
        template = path.read_text()
        made += [rendering(env, path.stem, template, conversation(rng, plain=i % 2 == 0)) for i in range(60)]
    variables = conversation(random.Random(5)) | {"n": 7, "x": 2.5, "s": "Straße Éa", "l": [3, 1, 2], "d": {"b": 1, "A": [1, 2], "items": 0, "": None}, "none": None, "deep": [{"a": {"b": [5]}}, {"a": {"b": []}}]}
    for part in HERE.joinpath("expressions.txt").read_text().split("\n===\n"):
        made.append(rendering(env, "expressions", part, variables))
    for line in HERE.joinpath("lines.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            made.append(rendering(env, "lines", line, variables))
    folder.joinpath("renderings.json").write_text(json.dumps(made))


main()
