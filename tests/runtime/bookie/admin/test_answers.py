"""The answers that only bkctl has keep their keys, in their order: scripts and older commands read them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bkctl.runtime.admin.api import JobsAnswer, ModeAnswer, RebuildSize, StateAnswer
from bkctl.runtime.admin.calls import decode_answer
from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig
from tests.runtime.bookie.admin.asking import Answered, local_asker

pytestmark = pytest.mark.cluster

OWN = "/api/v1/bkctl"
MODE = ["mode", "reasons", "registered", "operator"]
STATE = [
    *("bookie_id", "metadata_uri", "metadata_root", "instance_id", "version", "running", "stopping", "stage", *MODE),
    *("troubles", "accepts_recovery_writes", "started_ms", "uptime_s", "port", "http_port", "ledger_directories"),
    *("repair", "deletion_stopped", "jobs"),
]
JOB = ["id", "kind", "started_ms", "state", "progress", "ended_ms", "is_cancelling", "result", "error", "problem"]


def is_whole(answer: Answered, kind: type[Any]) -> bool:
    """Whether the struct has everything that the answer has."""
    decoded = decode_answer("b1", answer.text.encode(), kind)
    return bool(msgspec.json.decode(msgspec.json.encode(decoded)) == answer.json)


async def test_keys(bookie_config: BookieConfig) -> None:
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:

        async def ask(path: str, kind: type[Any]) -> Any:
            answer = await admin.get(f"{OWN}/{path}")
            assert is_whole(answer, kind)
            return answer.json

        put = await admin.put(f"{OWN}/mode", {"mode": "read-only", "reason": "test"})
        assert list(put.json) == MODE
        assert is_whole(put, ModeAnswer)
        started = await admin.ask("POST", f"{OWN}/index/rebuild")
        assert (started.status, list(started.json)) == (202, JOB)
        state = await ask("state", StateAnswer)
        assert list(state) == STATE
        assert list(state["reasons"][0]) == ["reason", "text"]
        assert list(state["operator"]) == ["since_ms", "reason"]
        assert list(state["repair"]) == ["is_due", "ledgers_in_limbo", "ledgers_checked", "entries_fetched"]
        (job,) = (await ask("jobs", JobsAnswer))["jobs"]
        assert (list(job), list(job["progress"])) == (JOB, ["step", "done", "total", "unit"])
        size = await ask("index/rebuild", RebuildSize)
        assert list(size) == ["bookie_id", "metadata_root", "instance_id", "directories"]
        assert list(size["directories"][0]) == ["path", "log_count", "log_bytes", "ledger_count", "entry_count"]
