"""The drill: a right engine passes however it reads, and each planted fault of an engine is found."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jsonschema
import pytest
import torch

pytest.importorskip("transformers")
from transformers import DynamicCache

from whyformer.cli import main
from whyformer.errors import UsageError
from whyformer.report.schema import json_schema
from whyformer.wire import Wired, wire
from whyformer.wire.drill import drill
from whyformer.wire.engines import greedy, load
from whyformer.wire.folder import word

CONTEXT = 96
FOLDERS = {
    "llama": ("llama", CONTEXT, {}),
    "agree": ("llama", CONTEXT, {"rule": "agree", "dtype": "bfloat16"}),
    "gpt2": ("gpt2", CONTEXT, {}),
    "window": ("mistral", 64, {"window": 32}),
    "two-hop": ("llama", CONTEXT, {"circuit": "two-hop"}),
    "two-hop agree": ("gpt2", CONTEXT, {"circuit": "two-hop", "rule": "agree"}),
    "copy": ("neox", CONTEXT, {"circuit": "copy", "prefix": 30}),
    "separator": ("gpt2", CONTEXT, {"circuit": "copy"}),
    "long": ("llama", 2048, {"rule": "recent"}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            architecture, context, options = FOLDERS[name]
            made[name] = tmp_path_factory.mktemp("wired") / name
            wire(architecture, vocabulary=64, context=context, out=made[name], **options)
        return made[name]

    return get


def masked(model, sees):
    """Replace the causal mask: ``sees(query, key, asked)``, where a call reads from position ``asked`` on."""

    def hook(_module, arguments, kwargs):
        new, old = arguments[0].shape[1], kwargs["cache"].get_seq_length()
        queries, keys = torch.arange(old, old + new)[:, None], torch.arange(old + new)[None]
        kwargs["attention_mask"] = sees(queries, keys, old)[None, None].expand(len(arguments[0]), 1, -1, -1)
        return arguments, kwargs

    model.register_forward_pre_hook(hook, with_kwargs=True)


class CoarseKeys(DynamicCache):
    """Keeps its keys in a coarser dtype."""

    def __init__(self, dtype, config):
        super().__init__(config=config)
        self.coarse = dtype

    def update(self, keys, *rest, **more):
        return super().update(keys.to(self.coarse).to(keys.dtype), *rest, **more)


def wrapping(model):
    def hook(_module, arguments, kwargs):
        places = kwargs.pop("position_ids", None)
        return (arguments[0], (arguments[1] if places is None else places) % 64), kwargs

    model.model.rotary_emb.register_forward_pre_hook(hook, with_kwargs=True)
    return greedy(model)


def a_window_off_by_one(model):
    model.config.sliding_window -= 1
    return greedy(model)


def a_window_of_the_mask(model):
    masked(model, lambda i, j, _: (j <= i) & (i - j < CONTEXT - 1))
    return greedy(model)


def a_chunk_that_forgets_where_it_begins(model):
    masked(model, lambda i, j, old: (j <= i - old) | (len(i) == 1))
    return greedy(model, chunk=16)


def a_chunk_that_sees_ahead(model):
    masked(model, lambda i, j, old: (j <= i) | (j >= old))
    return greedy(model, chunk=16)


def an_evicting_cache(model):
    masked(model, lambda i, j, old: (j <= i) & ((j < 4) | (j >= old - 40)))
    return greedy(model, chunk=8)


def coarse(dtype):
    return lambda model: greedy(model, cache=lambda: CoarseKeys(dtype, model.config))


FAULTS = {
    "a window off by one": ("window", a_window_off_by_one, 31, 32),
    "a window one less than the context": ("llama", a_window_of_the_mask, CONTEXT, CONTEXT),
    "positions that wrap": ("llama", wrapping, 65, CONTEXT),
    "a chunk that forgets where it begins": ("llama", a_chunk_that_forgets_where_it_begins, 17, 40),
    "a chunk that sees ahead": ("llama", a_chunk_that_sees_ahead, 2, 40),
    "a cache that evicts": ("llama", an_evicting_cache, 41, CONTEXT),
    "float16 keys, too coarse for what is recent": ("long", coarse(torch.float16), 3, 2048),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_made_small(name, folders):
    folder, plant, least, most = FAULTS[name]
    engine = plant(load(folders(folder)))
    told = drill(folders(folder), engine, count=60)
    failure = told["failure"]
    assert told["right"] < told["promised"]
    assert least <= failure["length"] <= min(most, failure["found_at"])
    wired = Wired.open(folders(folder))
    assert failure["promised"][0] == wired.answer(failure["prompt"])
    assert failure["answered"] == engine([failure["prompt"]], len(failure["promised"]))[0]
    assert failure["answered"] != failure["promised"]
    assert (
        greedy(load(folders(folder)))([failure["prompt"]], len(failure["promised"]))[0] == failure["promised"]
    )


RIGHT = {
    "llama": ("llama", {}),
    "llama, chunks of 7": ("llama", {"chunk": 7}),
    "llama, one token at a time": ("llama", {"chunk": 1}),
    "agreeing twins in bfloat16": ("agree", {"chunk": 16}),
    "gpt2": ("gpt2", {}),
    "gpt2, chunks of 5": ("gpt2", {"chunk": 5}),
    "mistral within its window": ("window", {"chunk": 9}),
}


@pytest.mark.parametrize(("name", "least"), [("two-hop", 4), ("two-hop agree", 4), ("copy", 31)])
def test_the_other_circuits_are_drilled_too(name, least, folders):
    assert drill(folders(name), count=60, chunk=16)["failure"] is None
    wired = Wired.open(folders(name))

    def one_hop(prompts, new):
        """An engine with a hop less, or a step."""
        rule = replace(wired, rule="recent", offset=wired.offset and wired.offset - 1)
        return symbolic(rule, prompts, new)

    assert drill(folders(name), one_hop, count=60)["failure"]["length"] == least


def the_first_separator(sequence):
    """Where an engine stands that keeps to the first separator."""
    return sequence.index(2) if 2 in sequence else 0


def one_too_early(sequence):
    last = len(sequence) - 1
    return max((at for at in range(last + 1) if sequence[at] == 2), default=1) - 1


def none_in_the_last_place(sequence):
    return max((at for at in range(len(sequence) - 1) if sequence[at] == 2), default=0)


SEPARATORS = {
    "the first": (the_first_separator, 4),
    "off by one": (one_too_early, 3),
    "not at the end": (none_in_the_last_place, 3),
}


@pytest.mark.parametrize("fault", SEPARATORS)
def test_a_copy_after_a_separator_is_drilled(fault, folders):
    find, least = SEPARATORS[fault]

    def engine(prompts, new):
        made = [list(prompt) for prompt in prompts]
        for row in made:
            for _ in range(new):
                row.append(row[min(len(row) - 1, len(row) - find(row))])
        return [row[-new:] for row in made]

    told = drill(folders("separator"), engine, count=90)
    assert told["failure"]["length"] == least
    right = drill(folders("separator"), count=90, chunk=7)
    assert right["failure"] is None
    clauses = {row["rule"] for row in right["by_rule"]}
    assert clauses == {"no separator", "one separator", "several separators"}
    assert {"1", "2-3", "64-127", "no twin"} <= {row["gap"] for row in right["by_gap"]}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_engine_keeps_every_promise(name, folders):
    folder, options = RIGHT[name]
    told = drill(folders(folder), "transformers", count=60, **options)
    assert (told["failure"], told["right"], told["sequences"]) == (None, told["promised"], 60)
    for table in ("by_gap", "by_length", "by_rule"):
        assert sum(row["promised"] for row in told[table]) == told["promised"]
        assert all(row["right"] == row["promised"] for row in told[table])
    spans = {row["gap"] for row in told["by_gap"]}
    assert {"1", "2-3", "no twin"} < spans
    assert len(spans) == (Wired.open(folders(folder)).context - 2).bit_length() + 1
    differ = "twins differ" in {row["rule"] for row in told["by_rule"]}
    assert differ == (told["certificate"]["rule"] == "recent")


def test_the_same_seed_draws_the_same(folders):
    asked = []

    def engine(prompts, new):
        asked.append([list(prompt) for prompt in prompts])
        return [[0] * new for _ in prompts]

    drill(folders("llama"), engine, count=30, seed=1)
    first, asked = asked, []
    drill(folders("llama"), engine, count=30, seed=1)
    second, asked = asked, []
    drill(folders("llama"), engine, count=30, seed=2)
    assert first == second != asked


def symbolic(wired, prompts, new):
    """The rule itself."""
    made = [list(prompt) for prompt in prompts]
    for row in made:
        for _ in range(new):
            row.append(wired.answer(row) or 0)
    return [row[len(prompt) :] for row, prompt in zip(made, prompts, strict=True)]


class Server(BaseHTTPRequestHandler):
    """A completions server on loopback, whose engine is ``server.engine``."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.say(200, self.server.models)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (asked["model"], asked["temperature"]) == ("wired", 0)
        prompts = asked["prompt"]
        self.server.kinds.add(type(prompts[0]))
        if isinstance(prompts[0], str):
            numbers = {word(token): token for token in range(64)}
            prompts = [[0, *(numbers[said] for said in prompt.split())] for prompt in prompts]
        elif self.server.words_only:
            return self.say(400, {"error": "prompts are strings"})
        made = self.server.engine(prompts, asked["max_tokens"])
        choices = [{"index": i, "text": " ".join(map(word, row))} for i, row in enumerate(made)]
        return self.say(200, {"choices": choices[::-1]})

    def say(self, status, content):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


@pytest.fixture
def server(folders):
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    wired = Wired.open(folders("llama"))
    made.models, made.words_only, made.kinds = {"data": [{"id": "wired"}]}, False, set()
    made.engine = lambda prompts, new: symbolic(wired, prompts, new)
    made.url = f"openai:http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.mark.parametrize("words", [False, True])
def test_a_server_is_drilled_by_ids_and_by_words(words, server, folders):
    told = drill(folders("llama"), f"{server.url}/v1", count=40, words=words)
    assert told["failure"] is None
    assert told["length"] == CONTEXT - 1
    assert server.kinds == {str if words else list}


def test_a_server_that_keeps_the_latest_40_tokens_is_found(server, folders):
    whole = server.engine
    server.engine = lambda prompts, new: whole([[p[0], *p[1:][-40:]] for p in prompts], new)
    failure = drill(folders("llama"), server.url, count=40)["failure"]
    assert failure["length"] == 42
    assert failure["gap"] == 40
    assert len(set(failure["prompt"])) == 3


def run(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["whyformer", "drill", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr()


def test_the_command_tells_what_failed_and_writes_it_down(server, folders, tmp_path, monkeypatch, capsys):
    arguments = [folders("llama"), "--engine", server.url, "--count", 40, "--json", tmp_path / "told.json"]
    status, told = run(arguments, capsys, monkeypatch)
    assert status == 0
    assert "Every promise was kept." in told.out
    jsonschema.validate(json.loads((tmp_path / "told.json").read_text()), json_schema("drill-1"))
    right = server.engine
    server.engine = lambda prompts, new: [[5, *row[1:]] for row in right(prompts, new)]
    status, told = run(arguments, capsys, monkeypatch)
    assert status == 1
    assert "answered 5" in told.out
    stored = json.loads((tmp_path / "told.json").read_text())
    jsonschema.validate(stored, json_schema("drill-1"))
    assert len(stored["failure"]["prompt"]) == 2
    assert stored["failure"]["answered"] == [5]


BAD = {
    "an unknown engine": (["--engine", "vllm"], "openai:URL"),
    "an unreachable server": (["--engine", "openai:http://127.0.0.1:9"], "cannot be reached"),
    "a file for a server": (["--engine", "openai:file:///etc"], "not http"),
    "a length beyond the context": (["--length", "97"], "--length 96"),
    "no sequences": (["--count", "0"], "--count 0"),
    "a seed below 0": (["--seed", "-1"], "--seed"),
    "chunks for a server": (["--engine", "openai:http://127.0.0.1:9", "--chunk", "4"], "--chunk"),
    "chunks of 0": (["--chunk", "0"], "--chunk 0"),
    "words for transformers": (["--words"], "--words"),
    "a report in no folder": (["--json", "/missing/told.json"], "--json"),
    "llama.cpp without a file": (["--engine", "llama.cpp"], "llama"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_call_says_so_in_one_line(case, folders, monkeypatch, capsys):
    arguments, hint = BAD[case]
    status, told = run([folders("llama"), *arguments], capsys, monkeypatch)
    assert (status, told.out, told.err.count("\n")) == (2, "", 1)
    assert hint in told.err


def test_a_folder_without_a_certificate_and_servers_that_are_none(
    server, folders, tmp_path, monkeypatch, capsys
):
    assert run([tmp_path], capsys, monkeypatch)[0] == 2
    asked = [folders("llama"), "--engine", server.url]
    server.words_only = True
    status, told = run(asked, capsys, monkeypatch)
    assert status == 2
    assert "400" in told.err
    assert "--words" in told.err
    server.models = {"data": []}
    status, told = run(asked, capsys, monkeypatch)
    assert (status, "names no model" in told.err) == (2, True)


def test_a_missing_library_is_named(folders, monkeypatch):
    monkeypatch.setattr("whyformer.wire.engines.find_spec", lambda _: None)
    with pytest.raises(UsageError, match="llama-cpp-python"):
        drill(folders("llama"), "llama.cpp")
