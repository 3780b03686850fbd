"""Settings of a bookie's process."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

_FAULTS_OF_THE_SECOND_TIME = """
import resource
from bkctl.runtime.bookie.boot.process import keep_freed_memory

def take_and_free():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    entries = [b"x" * (1 << 20) for _ in range(64)]
    while entries:
        entries.pop()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{call}
take_and_free()
print(take_and_free())
"""


def _faults_of_the_second_time(call: str) -> int:
    script = _FAULTS_OF_THE_SECOND_TIME.format(call=call)
    # Otherwise what the imports freed may have raised the threshold, from which on each block has its own mapping.
    fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=fixed)
    return int(result.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc only")
def test_the_memory_of_a_flushed_write_cache_is_used_again_without_page_faults() -> None:
    assert _faults_of_the_second_time("") > 10_000
    assert _faults_of_the_second_time("keep_freed_memory()") < 1000
