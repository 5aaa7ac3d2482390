"""Engines that can be drilled: each a function from prompts of one length to the ids that it goes on with.

An engine takes the likeliest token at every step. What it is given are ids, first token included.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from importlib import import_module
from importlib.util import find_spec
from ipaddress import ip_address
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
_KEY = "OPENAI_API_KEY"  # the environment variable that clients of such servers read


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

    Where OPENAI_API_KEY is set it is sent, over https or to this machine alone.

    Its text is read as words of the tokenizer, parted by spaces, special tokens included; what is no word is
    read as −1, which is never right.

    Args:
        url: of the server, "http://127.0.0.1:8000", with or without its "/v1".
        vocabulary: how many words there are.
        words: send words in place of ids; the server's tokenizer then puts the first token before them.

    Raises:
        UsageError: it cannot be reached, or does not answer as such a server does.
    """
    base = _base(url)
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
            texts = {int(choice["index"]): choice["text"] for choice in told["choices"]}
        except (KeyError, TypeError, ValueError) as error:
            raise _strange(base, "its answer has no choices with an index and a text") from error
        if sorted(texts) != list(range(len(prompts))):
            raise _strange(base, f"it answered {len(texts)} of {len(prompts)} prompts")
        if not all(isinstance(text, str) for text in texts.values()):
            raise _strange(base, "the text of a choice is no text")
        return [[numbers.get(text, -1) for text in texts[i].split()] for i in range(len(prompts))]

    return engine


def _base(url: str) -> str:
    """The URL of a server's interface.

    Raises:
        UsageError: it is no http or https URL of a host, a port and a path.
    """
    try:
        parts = urlsplit(url)
        plain = (parts.username, parts.query, parts.fragment) == (None, "", "") and parts.port != 0
        host = (parts.hostname or "").encode("idna")
    except ValueError:  # a port that is no number, a bracket that is not closed, a label that is too long
        plain, host = False, b""
    if url.partition(":")[0] not in ("http", "https"):
        why = "its URL is not http or https"
    elif not host or not plain or not url.isprintable() or " " in url:
        why = "its URL is not that of a host, a port and a path"
    else:
        base = url.rstrip("/")
        return base if base.endswith("/v1") else f"{base}/v1"
    raise UsageError(f"--engine openai:{url}", why, "try http://127.0.0.1:8000")


def _first_model(base: str) -> str:
    told = _ask(f"{base}/models", None)
    try:
        return str(told["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise _strange(base, "it names no model") from error


def _strange(base: str, why: str) -> UsageError:
    return UsageError(f"openai:{base}", why, "name an OpenAI-compatible completions server")


def _ask(url: str, body: dict[str, Any] | None) -> Any:
    """The JSON that a server answers, to a GET where there is no body.

    Raises:
        UsageError: it cannot be reached, refuses, or answers no JSON.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **_authority(url)}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - http(s)
    openers = (urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with urllib.request.build_opener(*openers).open(request, timeout=_PATIENCE) as r:
            return json.loads(r.read())
    except urllib.error.HTTPError as error:
        said = error.read(300).decode("utf-8", "replace")
        mend = "read the server's log; where it takes no ids, add --words"
        if error.code in (401, 403):
            mend = f"set {_KEY} to the key that it expects, which is sent over https or to this machine alone"
        raise UsageError(f"openai:{url}", f"it answered {error.code}: {said}", mend) from error
    except (OSError, urllib.error.URLError) as error:
        why = f"it cannot be reached: {getattr(error, 'reason', error)}"
        raise UsageError(f"openai:{url}", why, "start the server, or mend the URL") from error
    except HTTPException as error:
        raise _strange(url, f"it does not answer as HTTP is spoken: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _strange(url, f"its answer is no JSON: {error}") from error


def _authority(url: str) -> dict[str, str]:
    """The header with the user's key; nobody on the way is to read it.

    Raises:
        UsageError: the key cannot stand in a header.
    """
    key = os.environ.get(_KEY, "").strip()
    parts = urlsplit(url)
    here = parts.hostname == "localhost" or _loopback(parts.hostname or "")
    if not key or not (here or parts.scheme == "https"):
        return {}
    if not key.isascii() or not key.isprintable():
        raise UsageError(_KEY, "it holds what no key holds", "set it again, or unset it")
    return {"Authorization": f"Bearer {key}"}


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirections are errors: they would take the key elsewhere, and turn what is asked into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None
