from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.bookies.service_info import encode_service_info, rpc_service_info
from bkctl.runtime.metadata.doctor.bookies import Snapshot, compare
from bkctl.runtime.metadata.replication.format import encode_vote
from bkctl.runtime.metadata.store import Node, NodeStat
from bkctl.runtime.replication.judge.needed_bookies import NeededBookies
from tests.runtime.metadata.bad_nodes import BOOKIES, INSTANCE_ID, cookie, registration

PRESENT = frozenset(
    {"/r/available", "/r/LAYOUT", "/r/INSTANCEID", "/r/cookies", "/r/underreplication/lostBookieRecoveryDelay"}
)


def node(data: bytes, owner: int = 0) -> Node:
    return Node(data, NodeStat(0, 0, 0, owner, 0))


SOUND = Snapshot(
    writable={bookie_id: node(registration(bookie_id), 5) for bookie_id in BOOKIES},
    read_only={},
    cookies={bookie_id: node(cookie(bookie_id, "/data")) for bookie_id in BOOKIES},
    votes={"V_0000000003": node(encode_vote(BOOKIES[1]), 6), "V_0000000012": node(encode_vote(BOOKIES[0]), 7)},
    elected=node(encode_vote(BOOKIES[1])),
    instance_id=node(INSTANCE_ID.encode()),
    present=PRESENT,
)


def found(snapshot: Snapshot) -> set[tuple[str, str]]:
    return {(each.rule.id, each.path[len("/r/") :]) for each in compare("/r", snapshot, NeededBookies(()))}


def changed(**fields: object) -> set[tuple[str, str]]:
    return found(msgspec.structs.replace(SOUND, **fields))


def with_cookies(cookies: Mapping[str, bytes]) -> Mapping[str, Node]:
    return {name: node(data) for name, data in cookies.items()}


def test_a_sound_cluster() -> None:
    assert found(SOUND) == set()


def test_a_cookie_of_an_impossible_id_is_for_no_command() -> None:
    """That it has to go is found by its name alone; cookie verify and decommission would refuse the id."""
    impossible = {"READONLY": cookie("x", "/elsewhere", None), "a,b": b"junk"}
    assert changed(cookies={**(SOUND.cookies or {}), **with_cookies(impossible)}) == set()


def test_what_may_not_be_listed_is_not_taken_for_absent() -> None:
    assert changed(writable=None) == set()
    assert changed(read_only=None) == set()
    assert changed(cookies=None) == set()
    assert changed(votes=None, elected=None) == set()
    assert changed(instance_id=None) == set()


def test_two_sessions_under_one_id_are_two_processes_and_one_session_changes_its_mode() -> None:
    name = BOOKIES[0]
    assert changed(read_only={name: node(registration(name), 5)}) == set()
    assert changed(read_only={name: node(registration(name), 6)}) == {
        ("registered-by-two-sessions", f"available/readonly/{name}")
    }


def test_two_ids_with_one_address_are_one_bookie() -> None:
    at = encode_service_info(rpc_service_info("one.example.com", 3181))
    other = encode_service_info(rpc_service_info("one.example.com", 3182))
    rule = "bookies-share-address"
    assert (rule, "available/b2") in changed(writable={"b1": node(at, 5), "b2": node(at, 6)})
    assert (rule, "available/readonly/b2") in changed(writable={"b1": node(at, 5)}, read_only={"b2": node(at, 6)})
    apart = changed(writable={"b1": node(at, 5), "b2": node(other, 6)}, read_only={"b1": node(at, 5)})
    assert rule not in {found for found, _ in apart}


def test_directories_are_shared_on_one_host_alone() -> None:
    """The host is the one that a bookie publishes; ids of another form than host:port say nothing."""
    apart = {"a:1": cookie("a:1", "/data"), "b:1": cookie("b:1", "/data"), "c": cookie("c", "/data")}
    assert "cookies-share-folders" not in {rule for rule, _ in changed(cookies=with_cookies(apart))}
    published = {name: node(encode_service_info(rpc_service_info("one.example.com", 3181)), 5) for name in ("a:1", "c")}
    assert ("cookies-share-folders", "cookies/c") in changed(cookies=with_cookies(apart), writable=published)
    elsewhere = apart | {"c": cookie("c", "/other")}
    shared = changed(cookies=with_cookies(elsewhere), writable=published)
    assert "cookies-share-folders" not in {rule for rule, _ in shared}


def test_one_shared_index_directory_is_enough() -> None:
    def with_index(bookie_id: str, directory: str) -> bytes:
        return encode_cookie(
            Cookie(
                bookie_id=bookie_id,
                journal_directories=(f"{directory}/j",),
                ledger_directories=(f"{directory}/l",),
                index_directories=("/index",),
                instance_id=INSTANCE_ID,
            )
        )

    cookies = {"h:1": with_index("h:1", "/a"), "h:2": with_index("h:2", "/b")}
    assert ("cookies-share-folders", "cookies/h:2") in changed(cookies=with_cookies(cookies))


def test_votes_are_compared_by_number() -> None:
    votes = {"V_2147483647": node(encode_vote("late:1"), 5), "V_0000000009": node(encode_vote(BOOKIES[1]), 5)}
    assert changed(votes=votes) == set()
    assert changed(elected=node(encode_vote("late:1"))) == {
        ("auditor-not-in-office", "underreplication/auditorelection")
    }
    assert changed(elected=node(b"")) == {("auditor-not-in-office", "underreplication/auditorelection")}


def test_a_new_cluster_misses_nothing() -> None:
    empty = Snapshot({}, {}, {}, {}, None, node(INSTANCE_ID.encode()), PRESENT - {"/r/cookies"})
    assert found(empty) == set()


def test_a_cluster_without_an_instance_has_cookies_without_one() -> None:
    """Clusters of Java's standalone launcher have none: legal, but worth a warning."""
    cookies = with_cookies({bookie_id: cookie(bookie_id, "/data", None) for bookie_id in BOOKIES})
    present = PRESENT - {"/r/INSTANCEID"}
    assert changed(cookies=cookies, instance_id=None, present=present) == {("instance-id-missing", "INSTANCEID")}
