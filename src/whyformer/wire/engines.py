"""Engines that can be drilled: each a function from prompts of one length to the ids that it goes on with.

An engine takes the likeliest token at every step. What it is given are ids, first token included.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from whyformer.errors import UsageError
from whyformer.wire import llamacpp
from whyformer.wire.folder import word
from whyformer.wire.wired import Wired

Engine = Callable[[Sequence[Sequence[int]], int], list[list[int]]]
"""(prompts of one length, how many tokens to go on for) -> what follows each prompt."""

NAMES = "transformers, llama.cpp or openai:URL"
_PATIENCE = 600.0  # seconds for an answer of a server


def find(name: str, wired: Wired, *, chunk: int | None = None, words: bool = False) -> Engine:
    """The engine of that name, on a wired folder.

    Args:
        name: "transformers", "llama.cpp", or "openai:" and the URL of a completions server.
        wired: the folder.
        chunk: transformers: how many tokens of a prompt are read at a time, through the cache.
        words: a server: send words of the tokenizer in place of ids.

    Raises:
        UsageError: there is none, its library is not installed, or it cannot be reached or loaded.
        MissingExtraError: transformers is not installed.
    """
    kind, _, url = name.partition(":")
    if chunk is not None and (name != "transformers" or chunk < 1):
        why = "transformers alone reads in chunks, of 1 or more"
        raise UsageError(f"--chunk {chunk}", why, "leave it out, or give a number with --engine transformers")
    if words and kind != "openai":
        raise UsageError("--words", "it says what a server is sent", "leave it out, or name openai:URL")
    if name == "transformers":
        return greedy(load(wired.path), chunk=chunk)
    if name == "llama.cpp":
        return llama_cpp(wired)
    if kind == "openai" and url:
        return openai(url, wired.vocabulary, words=words)
    raise UsageError(f"--engine {name}", "it is no engine", f"choose {NAMES}")


def load(path: Path) -> Any:
    """The transformers model of a folder, in the dtype that is stored.

    Raises:
        UsageError: it cannot be loaded.
        MissingExtraError: transformers is not installed.
    """
    from whyformer.subjects.checkpoints import quiet, transformers

    loader = transformers().AutoModelForCausalLM
    try:
        with quiet():
            return loader.from_pretrained(path, dtype="auto", local_files_only=True).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(str(path), f"transformers cannot load it: {error}", "wire it again") from error


def greedy(model: Any, *, chunk: int | None = None, cache: Callable[[], Any] | None = None) -> Engine:
    """A transformers model: the prompt is read whole or in chunks, and decoded through the cache.

    Args:
        model: a causal language model.
        chunk: how many tokens of a prompt are read at a time; all where None.
        cache: makes a new cache; the model's own kind where None.
    """

    def engine(prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        import torch
        from transformers import DynamicCache

        kept = DynamicCache(config=model.config) if cache is None else cache()
        ids = torch.tensor([list(prompt) for prompt in prompts], device=model.device)
        made: list[Any] = []
        with torch.inference_mode():
            for part in ids.split(chunk or ids.shape[1], 1):
                logits = model(part, cache=kept, use_cache=True, logits_to_keep=1).logits
            made.append(logits[:, -1].argmax(-1, keepdim=True))
            while len(made) < new:
                logits = model(made[-1], cache=kept, use_cache=True).logits
                made.append(logits[:, -1].argmax(-1, keepdim=True))
        return torch.cat(made, 1).tolist()

    return engine


def llama_cpp(wired: Wired) -> Engine:
    """llama.cpp by llama-cpp-python, on the folder's GGUF file, with keys and values kept in float32.

    Raises:
        UsageError: it is not installed, or the folder holds no GGUF file that it loads.
    """
    if find_spec("llama_cpp") is None:
        mend = "pip install llama-cpp-python, or drill llama-server by openai:URL"
        raise UsageError("--engine llama.cpp", "llama-cpp-python is not installed", mend)
    path = wired.path / llamacpp.FILE
    if not path.is_file():
        raise UsageError(str(path), "there is no such file", "wire the folder with --gguf")
    library = import_module("llama_cpp")
    kept = {"type_k": library.GGML_TYPE_F32, "type_v": library.GGML_TYPE_F32}
    try:
        llama = library.Llama(str(path), n_ctx=wired.context, verbose=False, **kept)
    except (ValueError, RuntimeError) as error:
        raise UsageError(str(path), f"llama.cpp cannot load it: {error}", "wire it again") from error

    def one(prompt: Sequence[int], new: int) -> list[int]:
        llama.reset()  # else what is cached of the last prompt may be used again
        return list(islice(llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0), new))

    def engine(prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        return [one(prompt, new) for prompt in prompts]

    return engine


def openai(url: str, vocabulary: int, *, words: bool = False) -> Engine:
    """An OpenAI-compatible completions server, asked without a proxy.

    Its text is read as words of the tokenizer, parted by spaces, special tokens included; what is no word is
    read as −1, which is never right.

    Args:
        url: of the server, "http://127.0.0.1:8000", with or without its "/v1".
        vocabulary: how many words there are.
        words: send words in place of ids; the server's tokenizer then puts the first token before them.

    Raises:
        UsageError: it cannot be reached, or does not answer as such a server does.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(
            f"--engine openai:{url}", "its URL is not http or https", "try http://127.0.0.1:8000"
        )
    base = url.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    numbers = {word(token): token for token in range(vocabulary)}
    model = _first_model(base)

    def engine(prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        body = {
            "model": model,
            "prompt": [" ".join(map(word, p[1:])) if words else list(p) for p in prompts],
            "max_tokens": new,
            "temperature": 0,
            "skip_special_tokens": False,
        }
        told = _ask(f"{base}/completions", body)
        try:
            choices = sorted(told["choices"], key=lambda choice: choice["index"])
            texts = [str(choice["text"]).split() for choice in choices]
        except (KeyError, TypeError) as error:
            raise _strange(base, f"its answer has no choices with an index and a text ({error})") from error
        if len(texts) != len(prompts):
            raise _strange(base, f"it answered {len(texts)} of {len(prompts)} prompts")
        return [[numbers.get(text, -1) for text in said] for said in texts]

    return engine


def _first_model(base: str) -> str:
    told = _ask(f"{base}/models", None)
    try:
        return str(told["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise _strange(base, f"it names no model ({error!r})") from error


def _strange(base: str, why: str) -> UsageError:
    return UsageError(f"openai:{base}", why, "name an OpenAI-compatible completions server")


def _ask(url: str, body: dict[str, Any] | None) -> Any:
    """The JSON that a server answers, to a GET where there is no body.

    Raises:
        UsageError: it cannot be reached, refuses, or answers no JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 - http(s)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=_PATIENCE
        ) as r:
            return json.loads(r.read())
    except urllib.error.HTTPError as error:
        said = error.read(300).decode("utf-8", "replace")
        mend = "read the server's log; where it takes no ids, add --words"
        raise UsageError(f"openai:{url}", f"it answered {error.code}: {said}", mend) from error
    except (OSError, urllib.error.URLError) as error:
        why = f"it cannot be reached: {getattr(error, 'reason', error)}"
        raise UsageError(f"openai:{url}", why, "start the server, or mend the URL") from error
    except ValueError as error:
        raise _strange(url, f"its answer is no JSON: {error}") from error
