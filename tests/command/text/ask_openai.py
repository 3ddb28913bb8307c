# Talks to a server by the client of PyPI's openai, and prints what it answers as JSON. Exits with 77 where the package cannot be
# fetched.
#   ask_openai.py PACKAGES URL TOKEN
import concurrent.futures
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import packages  # noqa: E402

packages.install(sys.argv[1], ["openai==3.57.0"])
import openai  # noqa: E402

client = openai.OpenAI(base_url=sys.argv[2], api_key=sys.argv[3], max_retries=0, timeout=60)
model = client.models.list().data[0].id
found = {"model": model}


def talk(text, **options):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, temperature=0, **options)


def error_of(call):
    try:
        call()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.message, error.code]
    return None


answer = talk("abc")
found["chat"] = [answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage.completion_tokens]
pieces = list(talk("abc", stream=True, stream_options={"include_usage": True}))
found["stream"] = ["".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices), pieces[-2].choices[0].finish_reason,
                   pieces[-1].usage.completion_tokens]
found["pieces"] = len(pieces)
prompts = ["abc", "qrst", "fed", "aaaa", "t", "bcdbcd", "ol", "cab"]
together = client.completions.create(model=model, prompt=prompts, max_tokens=6, temperature=0)
found["completions"] = [choice.text for choice in together.choices]
alone = [client.completions.create(model=model, prompt=prompt, max_tokens=6, temperature=0).choices[0].text for prompt in prompts]
found["in_a_row"] = alone
with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
    drawn = dict(max_tokens=8, temperature=1, top_p=0.9)
    ask = lambda k: client.completions.create(model=model, prompt=prompts[k], seed=k, **drawn).choices[0].text  # noqa: E731
    found["parallel"] = list(pool.map(ask, range(len(prompts))))
    found["parallel_in_a_row"] = [ask(k) for k in range(len(prompts))]
found["streamed_completion"] = "".join(
    piece.choices[0].text for piece in client.completions.create(model=model, prompt="abc", max_tokens=6, temperature=0, stream=True))
found["too_long"] = error_of(lambda: client.completions.create(model=model, prompt="a" * 30, max_tokens=5))
found["other_model"] = error_of(lambda: client.completions.create(model="other", prompt="a"))
found["other_token"] = error_of(lambda: client.with_options(api_key="wrong").models.list())
print(json.dumps(found))
