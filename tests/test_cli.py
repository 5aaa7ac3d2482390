"""The command line from outside: exit status, one line of error, nothing half done."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whyformer import cli
from whyformer.claims import CLAIM_IDS
from whyformer.cli.lab import CONTEXT
from whyformer.lab import own_input

COMMAND = [sys.executable, "-m", "whyformer"]


def whyformer(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 60} | options
    return subprocess.run([*COMMAND, *arguments], check=False, **options)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["lab", "--help"], ["claims", "--help"]])
def test_help_and_version_do_not_import_torch(arguments):
    probe = "from whyformer.cli import main; main()"
    probe = f"import sys\ntry:\n {probe}\nfinally:\n assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", probe, *arguments], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "whyformer" in done.stdout


BAD = {
    "an unknown option": (["--sede", "3"], "--sede"),
    "an unknown command": (["labb"], "lab"),
    "a seed that is no number": (["lab", "--seed", "x"], "--seed"),
    "a negative seed": (["lab", "--seed", "-1"], "0 or more"),
    "a stray argument": (["lab", "7"], "7"),
    "an unknown unit": (["lab", "--text", "README.md", "--by", "lines"], "words"),
    "two inputs": (["lab", "--text", "README.md", "--sequence", "1 1"], "one input"),
    "a unit without a text": (["lab", "--by", "words"], "--text"),
    "a vocabulary without a sequence": (["lab", "--vocab", "3"], "--sequence"),
    "a context without an input": (["lab", "--context", "3"], "--text"),
    "a context of 0": (["lab", "--sequence", "1 1", "--context", "0"], "context"),
    "a symbol out of range": (["lab", "--sequence", "1 7 1", "--vocab", "5"], "7"),
    "a negative symbol": (["lab", "--sequence", "1 -7 1"], "-7"),
    "a symbol that is no integer": (["lab", "--sequence", "1 a 1"], "a"),
    "an empty sequence": (["lab", "--sequence", ""], "--sequence"),
    "one token": (["lab", "--sequence", "4"], "--sequence"),
    "a missing file": (["lab", "--text", "missing.txt"], "missing.txt"),
    "a folder for a text": (["lab", "--text", "."], "directory"),
    "a binary file": (["lab", "--text", "binary"], "binary"),
    "a file that is not UTF-8": (["lab", "--text", "latin"], "UTF-8"),
    "an empty file": (["lab", "--text", "empty"], "--text empty: it is empty"),
    "a report in a missing folder": (["lab", "--json", "missing/report.json"], "--json"),
    "a report in place of a folder": (["lab", "--json", "."], "--json"),
    "a report in place of its text": (["lab", "--text", "latin", "--json", "latin"], "replace the text"),
    "a report in place of a device": (["lab", "--json", os.devnull], "--json"),
    "a text without a name": (["lab", "--text", ""], "--text '': it is empty"),
    "a report without a name": (["lab", "--json", ""], "--json '': it is empty"),
    "a device for a text": (["lab", "--text", "/dev/zero"], "not a regular file"),
    "an unknown claim": (["claims", "routing.diluton"], "routing.dilution"),
    "a claim unlike any": (["claims", "\x1b[31m\n"], "\\x1b"),
}


@pytest.fixture
def here(monkeypatch, capsys):
    """Call the command in this process, which spares an import of torch: status, output, complaint."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whyformer", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, *capsys.readouterr()

    return call


@pytest.mark.parametrize("case", BAD)
def test_an_unusable_call_says_so_in_one_line(case, here, tmp_path, monkeypatch):
    arguments, hint = BAD[case]
    (tmp_path / "binary").write_bytes(b"\x00\x01\x02" * 50)
    (tmp_path / "latin").write_bytes("déjà vu".encode("latin-1"))
    (tmp_path / "empty").touch()
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    status, out, complaint = here(*arguments)
    assert (status, out) == (2, "")
    assert complaint.startswith("whyformer: ")
    assert complaint.count("\n") == 1
    assert "\x1b" not in complaint
    assert hint in complaint
    assert sorted(tmp_path.iterdir()) == before


def test_an_unusable_call_ends_its_process_with_2(tmp_path):
    for arguments in (["lab", "--seed", "-1"], ["lab", "--text", "missing.txt"]):
        done = whyformer(*arguments, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_the_context_is_that_of_the_circuit():
    assert CONTEXT == own_input.CONTEXT


def test_an_own_sequence_is_read_and_reported(tmp_path):
    done = whyformer("lab", "--sequence", "4 7 2 9 7 5 3 8 2 9", "--json", str(tmp_path / "report.json"))
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "holds"
    assert report["subject"]["tokens"] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("delay", [0.02, 0.4, 0.8, 2.0])
def test_an_interruption_is_one_line_and_leaves_no_file(delay, tmp_path):
    ready = "import whyformer.cli, sys\nprint(flush=True)\nwhyformer.cli.main()"
    with subprocess.Popen(
        [sys.executable, "-c", ready, "lab", "--json", "report.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=30)
    if process.returncode != 0:  # a fast machine may have finished first
        assert (process.returncode, complaint) == (130, "whyformer: interrupted\n")
        assert not list(tmp_path.iterdir())


def test_a_closed_pipe_ends_quietly():
    with subprocess.Popen([*COMMAND, "claims"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        complaint = process.stderr.read()
    assert (process.returncode, complaint) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_an_output_without_room_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = whyformer("--version", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "No space left" in done.stderr


def test_an_encoding_without_blocks_gets_their_ascii_twins():
    done = whyformer(
        "lab", "--sequence", "1 2 1 2", env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "?" not in done.stdout


def test_the_claims_are_listed_and_explained(here):
    status, listed, _ = here("claims")
    assert status == 0
    assert all(name in listed for name in CLAIM_IDS)
    for name in CLAIM_IDS:
        status, one, _ = here("claims", name)
        assert status == 0
        for heading in ("Mathematics", "Measured by", "Rule", "Reach", "Broken by", "Source"):
            assert f"\n{heading}\n" in one


@pytest.mark.parametrize("columns", [80, 200])
def test_no_line_is_wider_than_80_columns(columns, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in (
        ["claims"],
        ["claims", "routing.dilution"],
        ["lab", "--sequence", "1 2 1 2"],
        ["--help"],
    ):
        _, out, _ = here(*arguments)
        assert max(map(len, out.splitlines())) <= 80, arguments


def test_every_command_of_the_readme_runs(tmp_path):
    root = Path(__file__).parent.parent
    readme = root / "README.md"
    blocks = re.findall(r"^```\w*\n(.*?)^```", readme.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.split(" ")[0] == "whyformer"]
    assert commands
    strict = r"if \1; then false; else test $? = \2; fi"
    exits = [re.sub(r"(.*?)\s+# exits (\d)$", strict, command) for command in commands]
    (tmp_path / "README.md").write_bytes(readme.read_bytes())
    (tmp_path / "examples").symlink_to(root / "examples")
    shell = f'set -e; whyformer() {{ "{sys.executable}" -m whyformer "$@" > /dev/null; }}\n'
    subprocess.run(["bash", "-c", shell + "\n".join(exits)], cwd=tmp_path, check=True, timeout=400)


def test_a_report_in_place_of_a_hard_link_to_its_text_is_refused(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("a b a b")
    os.link("text", "link")
    status, _, complaint = here("lab", "--text", "text", "--json", "link")
    assert (status, "replace the text" in complaint) == (2, True)
    assert Path("text").read_text() == "a b a b"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_told_where_it_can_be(closed):
    shell = f'"{sys.executable}" -m whyformer claims {closed}'
    done = subprocess.run(["bash", "-c", shell], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    told = "whyformer: the output: it is closed; send it to a terminal or to a file\n"
    assert done.stderr == ("" if "2>" in closed else told)


def test_a_complaint_without_a_stderr_is_only_a_status():
    shell = f'"{sys.executable}" -m whyformer lab --seed -1 2>&-'
    done = subprocess.run(["bash", "-c", shell], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")


def test_an_interruption_before_the_command_is_imported_is_one_line():
    # The signal comes while whyformer.cli is looked for: before anything of it has run.
    probe = """
import os, signal, sys
# Whoever runs the tests in the background may have set the signal to be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "whyformer.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from runpy import run_module
run_module("whyformer", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", probe, "--version"], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "whyformer: interrupted\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_no_line_is_wider_for_an_encoding(encoding, tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = whyformer(env=environment, encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "floor(log_2k)" in " ".join(done.stdout.split())


def test_a_claim_is_found_by_its_name_alone(here):
    assert here("claims", "dilution") == here("claims", "routing.dilution")
