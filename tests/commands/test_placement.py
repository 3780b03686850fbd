"""Placement rules reach the commands: plans, refusals, ``--placement best-effort``, and ``ledger show``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataStore
from tests.commands.cluster.conftest import Operator

RECOVER = ("recover", "b1:3181", "-o", "json")


@pytest.fixture
def operator(tmp_path: Path, metadata_uri: str) -> Iterator[Operator]:
    """An empty ledger on b1, which is down, and b2; b3 is registered in the rack of b2."""
    operator = Operator(tmp_path, metadata_uri)
    racks = tmp_path / "racks.txt"
    racks.write_text("b1 /r2\nb2 /r1\nb3 /r1\n")
    operator.configure(f'[client.placement]\npolicy = "rack-aware"\nrack_table_file = "{racks}"\n')
    operator.succeed("cluster", "init")
    metadata = to_closed(new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b""), -1, 0)

    async def add(store: MetadataStore) -> None:
        await asyncio.gather(
            store.create(f"{operator.root}/00/0000/L0000", encode_ledger_metadata(metadata), make_parents=True),
            *(
                store.create(f"{operator.root}/{directory}/{bookie_id}", make_parents=True)
                for directory in ("available", "cookies")
                for bookie_id in ("b2:3181", "b3:3181")
            ),
        )

    operator.on_store(add)
    yield operator
    operator.end()


def body(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def test_a_copy_that_breaks_a_rule_needs_consent(operator: Operator) -> None:
    shown = body(operator.succeed("ledger", "show", "0", "-o", "json").stdout)
    assert shown["broken_placement_rules"] == []

    plan = operator.run("recover", "b1:3181", "--dry-run")
    shown_plan = plan.stdout + plan.stderr
    assert "no target keeps the placement rules for some fragments (racks per write quorum: 1)" in shown_plan
    assert "left alone without --placement best-effort" in shown_plan

    refused = operator.run(*RECOVER, "--yes", "--to", "b3:3181")
    assert refused.exit_code == 3
    assert "copies to b3:3181 alone would break placement rules of some fragments (racks per write quorum: 1)" in (
        refused.stderr
    )
    refused = operator.run(*RECOVER, "--yes")
    assert refused.exit_code == 1
    assert "no bookie that keeps the placement rules" in refused.stdout
    assert body(refused.stdout)["copies_breaking_placement"] == {}

    done = operator.run(*RECOVER, "--yes", "--placement", "best-effort")
    assert done.exit_code == 0, done.stderr
    assert body(done.stdout)["copies_breaking_placement"] == {"racks per write quorum": 1}

    shown = body(operator.succeed("ledger", "show", "0", "-o", "json").stdout)
    assert shown["broken_placement_rules"] == [
        "from entry 0: racks per write quorum: b3:3181, b2:3181: 1 rack instead of 2"
    ]


def test_the_racks_of_a_pulsar_cluster_are_found(tmp_path: Path, metadata_uri: str) -> None:
    pulsar = Operator(tmp_path, f"{metadata_uri}/ledgers")
    bookies = pulsar.root.removesuffix("ledgers") + "bookies"
    pulsar.succeed("cluster", "init")
    metadata = to_closed(new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b""), -1, 0)
    racks = {"default": {"b1:3181": {"rack": "/r2"}, "b2:3181": {"rack": "/r1"}, "b3:3181": {"rack": "/r1"}}}

    async def add(store: MetadataStore) -> None:
        await store.create(f"{pulsar.root}/00/0000/L0000", encode_ledger_metadata(metadata), make_parents=True)
        await store.create(bookies, json.dumps(racks).encode())
        await store.create(f"{pulsar.root}/available/b3:3181", b"")
        for bookie_id in ("b1:3181", "b2:3181"):  # they are down
            await store.create(f"{pulsar.root}/cookies/{bookie_id}", make_parents=True)

    async def replace_by_other_data(store: MetadataStore) -> None:
        await store.set(bookies, b"not Pulsar's", ANY_VERSION)

    pulsar.on_store(add)
    shown = pulsar.run("recover", "b1:3181", "--dry-run")
    assert (
        "no target keeps the placement rules for some fragments (racks per write quorum: 1)"
        in shown.stdout + shown.stderr
    )
    assert f"racks and isolation groups come from Pulsar's node {bookies} (racks: 2," in shown.stdout + shown.stderr
    pulsar.on_store(replace_by_other_data)
    (unknown,) = body(pulsar.succeed("ledger", "show", "0", "-o", "json").stdout)["broken_placement_rules"]
    assert unknown.startswith(f"unknown: cannot use the node {bookies}: ")
    pulsar.end()


def test_a_wrong_source_of_racks_stops_the_command(operator: Operator) -> None:
    operator.configure('[client.placement]\npolicy = "rack-aware"\nrack_table_file = "/none/racks"\n')
    result = operator.run(*RECOVER, "--yes")
    assert result.exit_code != 0
    assert "cannot read the rack table /none/racks: No such file or directory" in result.stderr


def test_rack_aware_placement_without_racks_is_refused(operator: Operator) -> None:
    operator.configure('[client.placement]\npolicy = "rack-aware"\n')
    result = operator.run(*RECOVER, "--dry-run")
    assert "rack-aware placement needs racks: set pulsar_bookies_path, rack_table_file or rack_script" in result.stderr


def test_a_plan_names_a_rack_that_java_refuses(operator: Operator, tmp_path: Path) -> None:
    (tmp_path / "racks.txt").write_text("b1 /r2\nb2 /r1\nb3 /eu/r1\n")
    plan = operator.run("recover", "b1:3181", "--dry-run", "-o", "json")
    assert 'bookie b3:3181 has the rack "/eu/r1", which Java refuses' in "; ".join(body(plan.stdout)["summary"])
