from __future__ import annotations

import msgspec
import pytest

from runtime.bookie.cookie_check import CookieDecision, DirectoryState, decide
from runtime.errors import CookieError
from runtime.metadata.cookies import Cookie

EXPECTED = Cookie(bookie_id="b1:3181", journal_directories=("/j",), ledger_directories=("/l",), instance_id="cluster-1")
FOREIGN = msgspec.structs.replace(EXPECTED, bookie_id="b2:3181")
OTHER_CLUSTER = msgspec.structs.replace(EXPECTED, instance_id="cluster-2")


def directory(path: str, cookie: Cookie | None, *, has_data: bool) -> DirectoryState:
    return DirectoryState(path, cookie, has_data)


def test_new_bookie_in_empty_folders_is_stamped() -> None:
    folders = [directory("/j", None, has_data=False), directory("/l", None, has_data=False)]
    assert decide(EXPECTED, None, folders) is CookieDecision.STAMP


def test_first_start_that_was_cut_off_while_stamping_is_stamped_again() -> None:
    folders = [directory("/j", EXPECTED, has_data=False), directory("/l", None, has_data=False)]
    assert decide(EXPECTED, None, folders) is CookieDecision.STAMP


def test_known_bookie_boots() -> None:
    folders = [directory("/j", EXPECTED, has_data=True), directory("/l", EXPECTED, has_data=True)]
    assert decide(EXPECTED, EXPECTED, folders) is CookieDecision.BOOT


@pytest.mark.parametrize(
    ("stored", "journal", "ledgers", "sentence"),
    [
        (FOREIGN, (EXPECTED, True), (EXPECTED, True), "known to this cluster with other settings"),
        (OTHER_CLUSTER, (EXPECTED, True), (EXPECTED, True), "instance id"),
        (None, (FOREIGN, True), (None, False), "belongs to another bookie"),
        (EXPECTED, (EXPECTED, True), (FOREIGN, True), "belongs to another bookie"),
        (EXPECTED, (EXPECTED, True), (None, False), "not mounted"),
        (EXPECTED, (EXPECTED, True), (None, True), "not mounted"),
        (None, (EXPECTED, True), (EXPECTED, True), "decommissioned"),
        (None, (EXPECTED, False), (EXPECTED, True), "decommissioned"),
        (None, (None, False), (None, True), "holds files but no cookie"),
    ],
)
def test_folders_that_could_hide_a_loss_are_refused(
    stored: Cookie | None, journal: tuple[Cookie | None, bool], ledgers: tuple[Cookie | None, bool], sentence: str
) -> None:
    folders = [directory("/j", journal[0], has_data=journal[1]), directory("/l", ledgers[0], has_data=ledgers[1])]
    with pytest.raises(CookieError, match=sentence):
        decide(EXPECTED, stored, folders)
