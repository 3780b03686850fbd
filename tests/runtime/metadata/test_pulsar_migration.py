"""Migrations of Pulsar's metadata stop changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.metadata.pulsar_migration import FLAG_PATH, why_forbidden
from tests.commands.cluster.conftest import Operator


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING"])
def test_a_running_migration_forbids_changes(phase: str) -> None:
    data = f'{{"phase": "{phase}", "targetUrl": "oxia://h:6648/default"}}'.encode()
    assert why_forbidden(data) == (
        "Pulsar is migrating its metadata to oxia://h:6648/default: wait until that has ended, then repeat the command"
    )


def test_after_a_migration_zookeeper_is_outdated() -> None:
    reason = why_forbidden(b'{"phase": "COMPLETED", "targetUrl": null}')
    assert reason == "Pulsar has migrated its metadata, so ZooKeeper no longer has the metadata of this cluster"


@pytest.mark.parametrize("phase", ["FAILED", "NOT_STARTED"])
def test_a_migration_that_failed_forbids_nothing(phase: str) -> None:
    assert why_forbidden(f'{{"phase": "{phase}"}}'.encode()) is None


def test_an_unknown_phase_forbids_changes() -> None:
    assert why_forbidden(b'{"phase": "ROLLBACK"}') == "Pulsar's metadata migration is in an unknown phase, ROLLBACK"


@given(st.binary(max_size=30))
def test_a_state_that_cannot_be_decoded_forbids_changes(data: bytes) -> None:
    assert "cannot be decoded" in str(why_forbidden(data))


@pytest.mark.parametrize(
    "change",
    [
        ("recover", "b1:3181", "--yes"),
        ("autorecovery", "disable", "--yes"),
        ("autorecovery", "delay", "set", "10m"),
        ("autorecovery", "maintenance", "start", "b1:3181", "--for", "30m", "--accept-risk"),
        ("cluster", "health-check", "disable"),
        ("cluster", "init", "--if-not-exists"),
        ("ledger", "write-test"),
    ],
    ids=" ".join,
)
def test_a_command_that_changes_something_is_refused_and_its_plan_is_not(
    tmp_path: Path, metadata_uri: str, change: tuple[str, ...]
) -> None:
    operator = Operator(tmp_path, f"{metadata_uri}/pulsar-directory/ledgers")
    operator.succeed("cluster", "init")
    operator.add_ledgers(1)
    path = operator.root.removesuffix("/ledgers") + FLAG_PATH
    operator.on_store(lambda store: store.create(path, b'{"phase": "COPYING"}', make_parents=True))
    operator.succeed(*(each for each in change if each != "--yes"), "--dry-run")
    before = operator.tree()
    refused = operator.run(*change)
    assert refused.exit_code == 3
    assert (
        f"Pulsar is migrating its metadata: wait until that has ended, then repeat the command ({path})"
        in refused.stderr
    )
    assert operator.tree() == before
