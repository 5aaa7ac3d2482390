"""How this process's memory is handed out, where the C library lets itself be asked."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""The parameters of ``mallopt`` in glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for what it allocates next; whether that was granted.

    By default glibc gives each block above 32 MiB back to the system, and every layer of a forward that
    takes such blocks has their pages faulted in and zeroed anew: at 8,192 tokens, a tenth of what a scan of
    SmolLM2-135M costs. Kept memory has holes, so the peak may rise a little. The main thread's blocks are
    kept, to the end of the process: it is for commands, not for libraries. Source: mallopt(3).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
