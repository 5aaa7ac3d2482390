import ctypes
import platform
import subprocess
import sys

import pytest

from whyformer.malloc import keep_freed_memory

AGAIN = """
import resource
import torch
from whyformer.malloc import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.zeros(16 << 20).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = faults()
assert keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it asks glibc's malloc")
def test_a_freed_block_is_taken_again_without_a_page_fault():
    run = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    # Eight blocks of 64 MiB are 131,072 pages of 4 KiB, or 256 huge ones.
    assert before >= 256
    assert after < before / 20


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not keep_freed_memory()
