"""The admin interface changes the log level of a bookie process; an unrelated SIGHUP leaves it as it is."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.commands.bookie.test_reload import DEADLINE_S, wait_said
from tests.processes import free_port, run_bkctl, start_bkctl

pytestmark = pytest.mark.cluster

PATH = "http://bookie/api/v1/bkctl/log-level"


async def ask(session: aiohttp.ClientSession, method: str, body: str = "", status: int = 200) -> Any:
    async with session.request(method, PATH, data=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def test_the_level_changes_and_stays(metadata_uri: str, tmp_path: Path) -> None:
    assert run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri).exit_code == 0
    conf, log = tmp_path / "bk_server.conf", tmp_path / "bookie.log"

    def write(*lines: str) -> None:
        conf.write_text(
            f"metadataServiceUri={metadata_uri}\nbookiePort={port}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
            f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\nlogFile={log}\n"
            + "".join(f"{line}\n" for line in lines)
        )

    port = free_port()
    write()
    process = start_bkctl("bookie", "start", "--conf", str(conf))
    try:
        wait_said(log, "listening on port", process)
        connector = aiohttp.UnixConnector(str(tmp_path / "ledgers" / "bkctl.admin.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:
            assert await ask(session, "GET") == {"level": "info"}
            assert await ask(session, "PUT", '{"level": "error"}') == {"level": "error"}
            wait_said(log, "admin interface: log level = error (was info)", process)
            for body in ("", "{}", "debug", '{"level": "loud"}', '{"level": "info", "x": 1}', "[]"):
                refused = await ask(session, "PUT", body, 400)
                assert refused["problem"] == "invalid"
            assert await ask(session, "PUT", '{"level": "debug"}') == {"level": "debug"}

            write("compactionRate=50")
            process.send_signal(signal.SIGHUP)
            wait_said(log, "copied_entries_per_s_max = 50.0", process)
            assert await ask(session, "GET") == {"level": "debug"}
            assert "log level debug, set at run time, stays; the setting is info" in log.read_text()

            write("compactionRate=50", "logLevel=warning")
            process.send_signal(signal.SIGHUP)
            wait_said(log, "setting changed: log level = warning (was debug)", process)
            assert await ask(session, "GET") == {"level": "warning"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
