"""The mode that an operator sets: registered, kept over a restart, with reason and time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig, DiskConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.filenames import OPERATOR_MODE
from tests.runtime.bookie.admin.asking import Asker, local_asker
from tests.zookeeper_servers import secured_server

MODE, READ_ONLY, STATE = "/api/v1/bkctl/mode", "/api/v1/bookie/state/readonly", "/api/v1/bkctl/state"


async def own_state(admin: Asker) -> dict[str, object]:
    found: dict[str, object] = (await admin.get(STATE)).json
    return found


async def test_an_operator_s_mode_survives_a_restart_with_reason_and_time(
    bookie_config: BookieConfig, store: ZooKeeperStore
) -> None:
    registrations = RegistrationClient(store, parse_metadata_uri(bookie_config.metadata_uri).root)
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        answer = await admin.put(MODE, {"mode": "read-only", "reason": 'disk sdb: ü, "x"'})
        assert answer.status == 200
        assert (await registrations.writable(), await registrations.read_only()) == ([], ["bookie-under-test"])
        before = await own_state(admin)
        assert before["mode"] == "read-only"
        assert before["registered"] is True
        again = await admin.put(READ_ONLY, {"readOnly": "true"})
        assert again.json == {"readOnly": True}
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        assert await registrations.read_only() == ["bookie-under-test"]
        after = await own_state(admin)
        assert after["operator"] == before["operator"]
        assert after["reasons"] == [{"reason": "manual", "text": "set by an operator"}]
        answer = await admin.put(READ_ONLY, {"readOnly": False})
        assert answer.json == {"readOnly": False}
        assert await registrations.writable() == ["bookie-under-test"]
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        state = await own_state(admin)
        assert (state["mode"], state["operator"]) == ("writable", None)
        assert await registrations.writable() == ["bookie-under-test"]


async def test_changes_at_the_same_time_leave_what_is_stored_and_registered_equal(
    bookie_config: BookieConfig, store: ZooKeeperStore
) -> None:
    registrations = RegistrationClient(store, parse_metadata_uri(bookie_config.metadata_uri).root)
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        changes = [admin.put(READ_ONLY, {"readOnly": number % 2 == 0, "reason": str(number)}) for number in range(20)]
        answers = await asyncio.gather(*changes)
        assert {answer.status for answer in answers} == {200}
        is_read_only = (await admin.get(READ_ONLY)).json["readOnly"]
        assert await registrations.read_only() == (["bookie-under-test"] if is_read_only else [])
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        assert (await admin.get(READ_ONLY)).json["readOnly"] is is_read_only


async def test_other_reasons_for_read_only_stay(bookie_config: BookieConfig) -> None:
    config = msgspec.structs.replace(bookie_config, is_read_only=True)
    async with running_bookie(config), local_asker(config) as admin:
        assert (await admin.put(READ_ONLY, {"readOnly": True})).json == {"readOnly": True}
        assert (await admin.put(READ_ONLY, {"readOnly": False})).json == {"readOnly": True}
        assert [each["reason"] for each in (await admin.get(STATE)).json["reasons"]] == ["forced"]


async def test_without_read_only_mode_the_request_is_refused(bookie_config: BookieConfig) -> None:
    config = msgspec.structs.replace(bookie_config, disks=DiskConfig(is_read_only_mode_enabled=False))
    async with running_bookie(config), local_asker(config) as admin:
        answer = await admin.put(READ_ONLY, {"readOnly": True})
        assert (answer.status, answer.json["problem"]) == (400, "invalid")
        assert "readOnlyModeEnabled" in answer.json["error"]
        assert (await admin.put(READ_ONLY, {"readOnly": False})).status == 200


async def test_a_mode_that_cannot_be_kept_is_not_set(bookie_config: BookieConfig) -> None:
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        Path(bookie_config.storage.ledger_directories[0], "current", OPERATOR_MODE, "in the way").mkdir(parents=True)
        answer = await admin.put(MODE, {"mode": "read-only"})
        assert answer.status == 500
        assert "no ledger directory can keep it" in answer.json["error"]
        assert (await own_state(admin))["mode"] == "writable"


@pytest.mark.parametrize(
    "body",
    [
        {"mode": "readonly"},
        {"mode": ["read-only"]},
        {"mode": "read-only", "why": "x"},
        {"mode": "read-only", "reason": 5},
        {"mode": "read-only", "reason": "two\nlines"},
        {"mode": "read-only", "reason": "x" * 501},
        ["read-only"],
        {},
    ],
)
async def test_a_body_that_is_not_understood_changes_nothing(bookie_config: BookieConfig, body: object) -> None:
    async with running_bookie(bookie_config), local_asker(bookie_config) as admin:
        answer = await admin.put(MODE, body)
        assert (answer.status, answer.json["problem"]) == (400, "invalid")
        assert (await own_state(admin))["mode"] == "writable"


async def test_while_zookeeper_does_not_answer_the_registration_is_pending(
    bookie_config: BookieConfig, tmp_path: Path
) -> None:
    with secured_server(tmp_path / "zookeeper", {}, {}) as zookeeper:
        uri = f"zk+hierarchical://{zookeeper.address}/ledgers"
        config = msgspec.structs.replace(bookie_config, metadata_uri=uri)
        store = await ZooKeeperStore.connect(zookeeper.address)
        await init_cluster(store, "/ledgers", parse_metadata_uri(uri).tree, random.Random(1))
        async with running_bookie(config) as server, local_asker(config) as admin:
            zookeeper.halt()
            try:
                answer = await admin.put(MODE, {"mode": "read-only"})
            finally:
                zookeeper.go_on()
            assert (answer.status, answer.json["mode"], answer.json["registered"]) == (202, "read-only", False)
            await server.view.modes.registered()
            assert await RegistrationClient(store, "/ledgers").read_only() == ["bookie-under-test"]
        await store.close()
