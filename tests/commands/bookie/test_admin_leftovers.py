"""What a killed bookie leaves of its admin interface, and what an operator set there."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.filenames import ADMIN_SOCKET
from bkctl.storage.operator_mode import read_operator_mode
from tests.commands.bookie.admin_bookie import running_bookie, start_again, wait_said
from tests.processes import run_bkctl


async def state(socket: Path) -> dict[str, Any]:
    url = "http://bookie/api/v1/bkctl/state"
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        answer = await session.get(url)
        found: dict[str, Any] = await answer.json()
        return found


async def set_read_only(socket: Path) -> int:
    connector, body = aiohttp.UnixConnector(str(socket)), json.dumps({"mode": "read-only", "reason": "maintenance"})
    url = "http://bookie/api/v1/bkctl/mode"
    async with aiohttp.ClientSession(connector=connector) as session, session.put(url, data=body) as answer:
        return answer.status


def test_a_kill_leaves_a_socket_that_no_check_minds_and_a_mode_that_counts(metadata_uri: str, tmp_path: Path) -> None:
    socket = tmp_path / "ledgers" / ADMIN_SOCKET
    with running_bookie(metadata_uri, tmp_path) as bookie:
        assert asyncio.run(set_read_only(socket)) == 200
    assert os.path.lexists(socket), "the process was killed"
    order = read_operator_mode(OsFileSystem(), [str(tmp_path / "ledgers" / "current")])
    assert order is not None
    assert (order.is_read_only, order.reason) == (True, "maintenance")
    directories = ("--journal-dir", str(tmp_path / "journal"), "--ledger-dir", str(tmp_path / "ledgers"))
    check = run_bkctl("storage", "check", *directories, "-o", "json")
    assert (check.exit_code, check.json()["items"]) == (0, []), check.stderr
    files = run_bkctl("storage", "files", *directories, "-o", "json")
    assert files.exit_code == 0, files.stderr
    unknown = [item for item in files.json()["items"] if item["kind"] == "unknown"]
    assert unknown == []
    with start_again(bookie) as again:
        wait_said(bookie.log, "listening on port", again.process)
        found = asyncio.run(state(socket))
        assert (found["mode"], found["operator"]) == (
            "read-only",
            {"since_ms": order.since_ms, "reason": "maintenance"},
        )
