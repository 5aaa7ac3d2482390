"""Servers that are none, or answer strangely: one line each, and no verdict; and the user's key."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("safetensors")

from whyformer.errors import UsageError
from whyformer.wire import wire
from whyformer.wire.drill import drill, lines
from whyformer.wire.engines import _authority

MODELS = b'{"data": [{"id": "wired"}]}'


class Server(BaseHTTPRequestHandler):
    """Says ``server.models`` and ``server.answer``, and keeps the keys that it was told."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.say(self.server.models)

    def do_POST(self):
        answer = self.server.answer
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.say(answer(asked) if callable(answer) else answer)

    def say(self, content):
        self.server.keys.append(self.headers.get("Authorization"))
        if self.server.raw:
            self.wfile.write(content)
            return
        refused = self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}"
        self.send_response(401 if refused else 200)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    made.models, made.answer, made.raw, made.key, made.keys = MODELS, b"", False, None, []
    made.url = f"openai:http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("wired") / "llama"
    wire("llama", vocabulary=16, context=16, out=made)
    return made


def said(text):
    """An answer of this text to every prompt."""
    return lambda asked: json.dumps(
        {"choices": [{"index": i, "text": text} for i in range(len(asked["prompt"]))]}
    ).encode()


STRANGE = {
    "nothing": (b"", "no JSON"),
    "no JSON": (b"<html>", "no JSON"),
    "a pit": (b"[" * 100_000, "no JSON"),
    "bytes that are no text": (b"\xff\xfe\xff", "no JSON"),
    "a list": (b"[1]", "no choices"),
    "no choices": (b"{}", "no choices"),
    "null for choices": (b'{"choices": null}', "no choices"),
    "a choice without an index": (b'{"choices": [{"text": "x"}]}', "no choices"),
    "too few": (b'{"choices": []}', "answered 0 of"),
    "one too many": (lambda asked: said("x")({"prompt": [*asked["prompt"], 0]}), "it answered"),
    "null for a text": (said(None), "is no text"),
    "a number for a text": (said(7), "is no text"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_is_no_answer_is_no_verdict(case, server, folder):
    server.answer, hint = STRANGE[case]
    with pytest.raises(UsageError, match=hint) as told:
        drill(folder, server.url, count=9)
    assert "Error" not in str(told.value)


@pytest.mark.parametrize("models", [b'{"data": []}', b"[1, 2]", b'{"data": [{}]}', b"null"])
def test_a_server_without_a_model_is_none(models, server, folder):
    server.models = models
    with pytest.raises(UsageError, match="it names no model;"):
        drill(folder, server.url)


@pytest.mark.parametrize("raw", [b"", b"banana\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_server_that_speaks_no_http_or_breaks_off_is_none(raw, server, folder):
    server.models, server.raw = raw, True
    with pytest.raises(UsageError, match="openai:http"):
        drill(folder, server.url)


def test_words_that_are_none_are_wrong(server, folder):
    server.answer = said("\N{SNOWMAN} hm")
    told = drill(folder, server.url, count=9)
    assert told["right"] == 0
    assert told["failure"]["answered"] == [-1]
    assert lines(told)[-1] == "  answered -1 (−1 is what is no word of the tokenizer)"


def test_the_key_of_the_environment_is_sent(server, folder, monkeypatch):
    server.key, server.answer = "sesame", said("")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UsageError, match=r"answered 401.* set OPENAI_API_KEY"):
        drill(folder, server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    assert drill(folder, server.url, count=3)["right"] == 0
    assert set(server.keys) == {None, "Bearer sesame"}
    monkeypatch.setenv("OPENAI_API_KEY", "open\nsesame")
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as told:
        drill(folder, server.url)
    assert "sesame" not in str(told.value)


def test_the_key_is_sent_where_nobody_on_the_way_reads_it(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    sent = {"Authorization": "Bearer sesame"}
    for url in ("https://far.example/v1", "http://localhost:1", "http://127.0.0.9", "http://[::1]:80/v1"):
        assert _authority(url) == sent
    for url in ("http://far.example", "http://127.far.example", "http://localhost.far.example"):
        assert _authority(url) == {}


URLS = [
    "http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999", "http://a b/", "http://a\r\nX: y",
    "http://", "http://.", "http:///v1", "http://me:secret@127.0.0.1", "http://127.0.0.1/v1?x=y",
    "http://127.0.0.1/v1#f", "ftp://127.0.0.1", "127.0.0.1:8000",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_what_is_no_url_of_a_server_is_refused(url, folder):
    with pytest.raises(UsageError, match="its URL is not"):
        drill(folder, f"openai:{url}")


def test_a_context_that_leaves_a_server_no_room_is_refused(server, tmp_path):
    wire("llama", vocabulary=16, context=4, out=tmp_path / "short")
    with pytest.raises(UsageError, match="longer context"):
        drill(tmp_path / "short", server.url)


def test_a_function_that_answers_too_few_is_no_engine(folder):
    with pytest.raises(UsageError, match="answered 0 of"):
        drill(folder, lambda prompts, new: [])
