"""The client for scripts without an event loop, on real bookies."""

from __future__ import annotations

import contextlib
import inspect
import signal
import threading
from collections.abc import Iterator

import pytest

from bkctl.runtime.client import Entry, LedgerClient
from bkctl.runtime.client.blocking import BlockingClient
from bkctl.runtime.errors import (
    ClusterNotFoundError,
    DuplicateEntryError,
    LedgerClosedError,
    LedgerNotFoundError,
    LedgerReadError,
    NotEnoughBookiesError,
)
from bkctl.storage.errors import BkctlError
from tests.processes import Cluster
from tests.until import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[BlockingClient]:
    with BlockingClient(cluster.metadata_uri) as client:
        yield client


def wait_for(found: list[bytes], count: int) -> None:
    wait_until(lambda: len(found) >= count)


def test_a_ledger_is_written_read_and_deleted(client: BlockingClient) -> None:
    with client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, password=b"p") as writer:
        assert writer.append(b"entry 0") == 0
        assert writer.append_all(b"entry %d" % each for each in range(1, 50)) == list(range(1, 50))
        reader = client.open(writer.ledger_id, password=b"p")
        assert reader.read_last_add_confirmed() >= 0
    expected = [Entry(each, b"entry %d" % each) for each in range(50)]
    assert list(client.open(writer.ledger_id, password=b"p")) == expected
    assert list(reader.follow()) == expected
    assert list(reader.entries(10, 19)) == expected[10:20]
    client.delete(writer.ledger_id)
    with pytest.raises(LedgerNotFoundError):
        client.open(writer.ledger_id, password=b"p")


def test_what_was_forced_is_there_after_kill_9_of_all_bookies(client: BlockingClient, cluster: Cluster) -> None:
    writer = client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2, deferred_sync=True)
    count = 1200  # more than append_all sends at once
    assert writer.append_all(b"entry %d" % each for each in range(count)) == list(range(count))
    assert writer.force() == count - 1
    assert writer.append(b"not forced") == count
    bookie_ids = [bookie.id for bookie in cluster.bookies]
    for bookie_id in bookie_ids:
        cluster.kill_bookie(bookie_id)
    with pytest.raises(BkctlError):
        writer.force()
    for bookie_id in bookie_ids:
        cluster.start_bookie(bookie_id)
    with contextlib.suppress(LedgerClosedError), pytest.raises(NotEnoughBookiesError, match="was lost"):
        writer.force()
    writer.close()
    expected = [Entry(each, b"entry %d" % each) for each in range(count)]
    assert list(client.open(writer.ledger_id, recover=True)) == expected


def test_entry_ids_of_the_caller(client: BlockingClient) -> None:
    with client.create(caller_entry_ids=True) as writer:
        assert [writer.append(b"%d" % each, entry_id=each) for each in range(3)] == [0, 1, 2]
        with pytest.raises(DuplicateEntryError):
            writer.append(b"again", entry_id=1)
    assert [entry.payload for entry in client.open(writer.ledger_id)] == [b"0", b"1", b"2"]


def test_create_and_open_have_the_parameters_of_the_client_for_asyncio() -> None:
    for blocking, other in ((BlockingClient.create, LedgerClient.create), (BlockingClient.open, LedgerClient.open)):
        assert inspect.signature(blocking).parameters == inspect.signature(other).parameters


def test_a_follower_in_another_thread_gets_entries_while_they_are_written(client: BlockingClient) -> None:
    found: list[bytes] = []
    with client.create() as writer:
        reader = client.open(writer.ledger_id)
        thread = threading.Thread(target=lambda: found.extend(each.payload for each in reader.follow()))
        thread.start()
        for each in range(5):
            writer.append(b"%d" % each)
            wait_for(found, each)
    thread.join(300)
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_leaving_a_loop_ends_its_follower_and_its_client_goes_on(client: BlockingClient) -> None:
    with client.create() as writer:
        writer.append(b"a")
        writer.append(b"b")
        for entry in client.open(writer.ledger_id).follow():
            assert entry == Entry(0, b"a")
            break
        assert writer.append(b"c") == 2


def test_an_interrupt_ends_the_wait_and_the_client_goes_on(client: BlockingClient) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts tests in the background ignores it
    with client.create() as writer:
        entries = client.open(writer.ledger_id).follow()
        timer = threading.Timer(0.5, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(entries)
        timer.join()
        assert writer.append(b"a") == 0


def test_a_closed_client_ends_what_other_threads_wait_for(cluster: Cluster) -> None:
    errors: list[BkctlError] = []
    client = BlockingClient(cluster.metadata_uri)
    writer = client.create()
    reader = client.open(writer.ledger_id)

    def follow() -> None:
        try:
            list(reader.follow())
        except BkctlError as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    client.close()
    thread.join(300)
    assert [type(each) for each in errors] in ([LedgerReadError], [LedgerClosedError])
    client.close()
    for call in (lambda: writer.append(b"a"), lambda: list(reader.follow()), lambda: client.delete(1)):
        with pytest.raises(LedgerClosedError, match="the client was closed"):
            call()


def test_no_thread_is_left_without_a_cluster(cluster: Cluster) -> None:
    with pytest.raises(ClusterNotFoundError):
        BlockingClient(f"{cluster.metadata_uri}-not-there")
    assert "ledger-client" not in {each.name for each in threading.enumerate()}
