"""Every case of the boot-time check (metadata section 7.3), with real directories and a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.cookies.check import CookieCheckService, CookieDecision, expected_cookie
from bkctl.runtime.bookie.cookies.directories import record_places
from bkctl.runtime.errors import BadVersionError, ConfigurationError, CookieError, NodeExistsError
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore, encode_cookie
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import StorageConfig

DISK = OsFileSystem()
OWN, FOREIGN, OTHER_CLUSTER = "own", "foreign", "other cluster"


class CookieFolders:
    """Directories j, l1 and l2 of the bookie b1:3181, and its cookie in the cluster."""

    def __init__(
        self, directory: Path, store: ZooKeeperStore, root: str, *, is_expansion_allowed: bool = False
    ) -> None:
        self.directory = directory
        self.store = store
        self.root = root
        self.config = StorageConfig(
            journal_directories=(str(directory / "j"),),
            ledger_directories=(str(directory / "l1"), str(directory / "l2")),
        )
        self.expected = expected_cookie(self.config, "b1:3181", "cluster-1")
        self.is_expansion_allowed = is_expansion_allowed

    @property
    def cookies(self) -> CookieStore:
        return CookieStore(self.store, self.root)

    @property
    def service(self) -> CookieCheckService:
        return CookieCheckService(
            DISK, self.config, self.cookies, asyncio.to_thread, is_expansion_allowed=self.is_expansion_allowed
        )

    def cookie(self, whose: str) -> Cookie:
        changes = {OWN: {}, FOREIGN: {"bookie_id": "b2:3181"}, OTHER_CLUSTER: {"instance_id": "cluster-2"}}[whose]
        return msgspec.structs.replace(self.expected, **changes)

    def fill(self, name: str, whose: str | None, *, has_data: bool) -> None:
        """Whose VERSION file a directory has, and whether an entry log lies beside it."""
        current = self.directory / name / "current"
        current.mkdir(parents=True, exist_ok=True)
        if whose is not None:
            (current / "VERSION").write_bytes(encode_cookie(self.cookie(whose)))
        if has_data:
            (current / "0.log").write_bytes(b"entries")

    def name_directories(self, journals: str, ledgers: str, index: str = "") -> None:
        """Other lists in the settings, as words."""
        self.config = StorageConfig(
            journal_directories=tuple(str(self.directory / name) for name in journals.split()),
            ledger_directories=tuple(str(self.directory / name) for name in ledgers.split()),
            index_directories=tuple(str(self.directory / name) for name in index.split()),
        )
        self.expected = expected_cookie(self.config, "b1:3181", "cluster-1")

    def tree(self) -> dict[str, bytes | None]:
        return {
            str(path.relative_to(self.directory)): path.read_bytes() if path.is_file() else None
            for path in self.directory.rglob("*")
        }

    async def decision(self, *former_ids: str) -> CookieDecision:
        before = self.tree()
        try:
            return (await self.service.check(self.expected, former_ids)).decision
        finally:
            assert self.tree() == before, "a check changes nothing"

    async def refusal(self, *former_ids: str) -> str:
        with pytest.raises(CookieError) as refused:
            await self.decision(*former_ids)
        return str(refused.value)


@pytest.fixture
def cookie_folders(tmp_path: Path, store: ZooKeeperStore, metadata_uri: str) -> CookieFolders:
    return CookieFolders(tmp_path, store, parse_metadata_uri(metadata_uri).root)


@pytest.mark.parametrize(
    ("stored", "directories", "outcome"),
    [
        # Rows of the table of step 5: stored cookie, then whose VERSION file and whether there is data, for j, l1, l2.
        (None, [(None, False), (None, False), (None, False)], CookieDecision.STAMP),
        (None, [(OWN, False), (OWN, False), (None, False)], CookieDecision.STAMP),
        (None, [(OWN, False), (OWN, False), (OWN, False)], CookieDecision.STAMP),
        (None, [(OWN, True), (OWN, True), (OWN, True)], "missing stored cookie"),
        (None, [(OWN, False), (OWN, False), (OWN, True)], "missing stored cookie"),
        (None, [(None, False), (None, False), (None, True)], "has files but no cookie"),
        (None, [(OWN, True), (OWN, True), (None, False)], "empty directory"),
        (None, [(OWN, True), (OWN, True), (None, True)], "has files but no cookie"),
        (OWN, [(OWN, True), (OWN, True), (OWN, True)], CookieDecision.BOOT),
        (OWN, [(OWN, False), (OWN, False), (OWN, False)], CookieDecision.BOOT),
        (OWN, [(OWN, True), (OWN, True), (None, False)], "empty directory"),
        (OWN, [(None, False), (OWN, True), (OWN, True)], "empty directory"),
        (OWN, [(None, False), (None, False), (None, False)], "empty directory"),
        (OWN, [(OWN, True), (OWN, True), (None, True)], "has files but no cookie"),
        # Steps 3 and 4: what is there must match.
        (OWN, [(OWN, True), (OWN, True), (FOREIGN, True)], "l2 belongs to bookie b2:3181"),
        (None, [(OWN, True), (OWN, True), (FOREIGN, True)], "l2 belongs to bookie b2:3181"),
        (
            None,
            [(FOREIGN, True), (FOREIGN, True), (FOREIGN, True)],
            "new address: the directories belong to bookie b2:3181",
        ),
        (OWN, [(FOREIGN, True), (FOREIGN, True), (FOREIGN, True)], "belongs to bookie b2:3181"),
        (OTHER_CLUSTER, [(OWN, True), (OWN, True), (OWN, True)], "different instance"),
        (OTHER_CLUSTER, [(OTHER_CLUSTER, True)] * 3, "different instance"),
        (OWN, [(OWN, True), (OTHER_CLUSTER, True), (OWN, True)], "wrong cluster"),
        (None, [(OTHER_CLUSTER, True)] * 3, "wrong cluster"),
    ],
)
async def test_the_table(
    cookie_folders: CookieFolders,
    stored: str | None,
    directories: list[tuple[str | None, bool]],
    outcome: CookieDecision | str,
) -> None:
    for name, (whose, has_data) in zip(("j", "l1", "l2"), directories, strict=True):
        cookie_folders.fill(name, whose, has_data=has_data)
    if stored is not None:
        await cookie_folders.cookies.create_node("b1:3181", encode_cookie(cookie_folders.cookie(stored)))
    if isinstance(outcome, CookieDecision):
        assert await cookie_folders.decision() is outcome
    else:
        refusal = await cookie_folders.refusal()
        assert outcome in refusal
        assert "bkctl cookie verify" in refusal


async def booted(cookie_folders: CookieFolders, *, has_data: bool = True) -> None:
    """A bookie that has been stamped, and has stored something."""
    await cookie_folders.service.stamp(
        cookie_folders.expected, (await cookie_folders.service.check(cookie_folders.expected)).stored_version
    )
    for path in cookie_folders.config.all_directories:
        cookie_folders.fill(Path(path).name, OWN, has_data=has_data)
    record_places(DISK, cookie_folders.config)
    assert await cookie_folders.decision() is CookieDecision.BOOT


@pytest.mark.parametrize("name", ["j", "l1", "l2"])
async def test_a_directory_that_is_gone(cookie_folders: CookieFolders, name: str) -> None:
    await booted(cookie_folders)
    (cookie_folders.directory / name).rename(cookie_folders.directory / "elsewhere")
    assert f"missing disk: {cookie_folders.directory / name} does not exist" in await cookie_folders.refusal()


@pytest.mark.parametrize("journals", ["j", "j2 j"])
@pytest.mark.parametrize("ledgers", ["l1", "l2 l1", "l1 l2 l3", "l3 l1 l2", "l1 l3 l2"])
@pytest.mark.parametrize("is_expansion_allowed", [False, True])
async def test_lists_changed_in_number_or_order(
    cookie_folders: CookieFolders, journals: str, ledgers: str, is_expansion_allowed: bool
) -> None:
    await booted(cookie_folders)
    cookie_folders.is_expansion_allowed = is_expansion_allowed
    cookie_folders.name_directories(journals, ledgers)
    assert "number or order of the directories" in await cookie_folders.refusal()


@pytest.mark.parametrize("ledgers", ["l1", "l2 l1", "l1 l2 l3", "l3 l1 l2"])
async def test_lists_changed_and_the_cookies_with_them(cookie_folders: CookieFolders, ledgers: str) -> None:
    """What Java's ``updatecookie -e`` and hands can do: every cookie agrees, and the entries are on the wrong disk."""
    await booted(cookie_folders)
    cookie_folders.name_directories("j", ledgers)
    for path in cookie_folders.config.all_directories:
        cookie_folders.fill(Path(path).name, OWN, has_data=False)
    await cookie_folders.cookies.write(cookie_folders.expected, 0)
    refusal = await cookie_folders.refusal()
    is_swapped = ledgers == "l2 l1"
    assert ("swapped volumes" if is_swapped else "although its cookie matches") in refusal
    cookie_folders.is_expansion_allowed = True
    assert await cookie_folders.refusal() == refusal


async def test_journals_in_another_order_whatever_the_cookies_say(cookie_folders: CookieFolders) -> None:
    cookie_folders.name_directories("j1 j2", "l1")
    await booted(cookie_folders)
    cookie_folders.name_directories("j2 j1", "l1")
    for path in cookie_folders.config.all_directories:
        cookie_folders.fill(Path(path).name, OWN, has_data=False)
    await cookie_folders.cookies.write(cookie_folders.expected, 0)
    assert "swapped volumes" in await cookie_folders.refusal()


async def test_expansion_of_a_bookie_without_ledgers(cookie_folders: CookieFolders) -> None:
    await booted(cookie_folders, has_data=False)
    cookie_folders.name_directories("j", "l1 l2 l3")
    assert "bkctl cookie verify" in await cookie_folders.refusal()
    cookie_folders.is_expansion_allowed = True
    check = await cookie_folders.service.check(cookie_folders.expected)
    assert check.decision is CookieDecision.EXPAND
    await cookie_folders.service.stamp(cookie_folders.expected, check.stored_version)
    assert (await cookie_folders.cookies.read("b1:3181")).value == cookie_folders.expected
    record_places(DISK, cookie_folders.config)
    assert await cookie_folders.decision() is CookieDecision.BOOT
    with pytest.raises(BadVersionError):
        await cookie_folders.service.stamp(cookie_folders.expected, check.stored_version)


@pytest.mark.parametrize("stamped", [[], ["j"], ["j", "l1"], ["j", "l1", "l2"], ["j", "l1", "l2", "l3"]])
async def test_an_expansion_that_was_cut_off_goes_on(cookie_folders: CookieFolders, stamped: list[str]) -> None:
    await booted(cookie_folders, has_data=False)
    cookie_folders.name_directories("j", "l1 l2 l3")
    cookie_folders.is_expansion_allowed = True
    for name in stamped:
        cookie_folders.fill(name, OWN, has_data=False)
    assert await cookie_folders.decision() is CookieDecision.EXPAND


@pytest.mark.parametrize(("name", "content"), [("l1", None), ("l3", "0.log"), ("j", None)])
async def test_no_expansion_over_a_lost_directory_or_strange_files(
    cookie_folders: CookieFolders, name: str, content: str | None
) -> None:
    await booted(cookie_folders, has_data=False)
    cookie_folders.name_directories("j", "l1 l2 l3")
    cookie_folders.is_expansion_allowed = True
    if content is None:
        (cookie_folders.directory / name / "current" / "VERSION").unlink()
    else:
        (cookie_folders.directory / name / "current").mkdir(parents=True)
        (cookie_folders.directory / name / "current" / content).write_bytes(b"x")
    await cookie_folders.refusal()


@pytest.mark.parametrize("stamped", [[], ["j"], ["j", "l1"], ["j", "l1", "l2"]])
async def test_a_first_start_that_was_cut_off_is_stamped_again(
    cookie_folders: CookieFolders, stamped: list[str]
) -> None:
    for name in stamped:
        cookie_folders.fill(name, OWN, has_data=False)
    check = await cookie_folders.service.check(cookie_folders.expected)
    assert check.decision is CookieDecision.STAMP
    await cookie_folders.service.stamp(cookie_folders.expected, check.stored_version)
    assert await cookie_folders.decision() is CookieDecision.BOOT


async def test_two_new_bookies_of_one_id_are_not_both_stamped(cookie_folders: CookieFolders, tmp_path: Path) -> None:
    other = CookieFolders(tmp_path / "other", cookie_folders.store, cookie_folders.root)
    check, other_check = (
        await cookie_folders.service.check(cookie_folders.expected),
        await other.service.check(other.expected),
    )
    await cookie_folders.service.stamp(cookie_folders.expected, check.stored_version)
    with pytest.raises(NodeExistsError):
        await other.service.stamp(other.expected, other_check.stored_version)
    assert await cookie_folders.decision() is CookieDecision.BOOT
    assert "changed" in await other.refusal() or "other directories" in await other.refusal()


async def test_candidate_ids(cookie_folders: CookieFolders) -> None:
    """Step 2: the cluster knows this host by another id, be it an address or a name."""
    former = msgspec.structs.replace(cookie_folders.expected, bookie_id="10.0.0.7:3181")
    await cookie_folders.cookies.create(former)
    assert await cookie_folders.decision() is CookieDecision.STAMP
    assert await cookie_folders.decision("b1:3181", "b1.example:3181") is CookieDecision.STAMP
    assert "belongs to bookie 10.0.0.7:3181" in await cookie_folders.refusal("10.0.0.7:3181")
    await booted(cookie_folders)
    assert "belongs to bookie 10.0.0.7:3181" in await cookie_folders.refusal("10.0.0.7:3181")


@pytest.mark.parametrize(
    ("how", "name"),
    [
        (lambda text: text.replace(b"5\n", b"4\n"), "4"),
        (lambda _: b"3\nb1:3181\n%(j)s\n2\t%(l1)s\t%(l2)s\n", "3"),
    ],
    ids=["layout 4", "layout 3"],
)
async def test_older_layouts_boot_and_are_not_rewritten(
    cookie_folders: CookieFolders, how: Callable[[bytes], bytes], name: str
) -> None:
    names = {key.encode(): str(cookie_folders.directory / key).encode() for key in ("j", "l1", "l2")}
    cookie_folders.expected = msgspec.structs.replace(cookie_folders.expected, instance_id=None)
    data = how(encode_cookie(cookie_folders.expected))
    data = data % names if name == "3" else data
    for directory in ("j", "l1", "l2"):
        cookie_folders.fill(directory, None, has_data=True)
        (cookie_folders.directory / directory / "current" / "VERSION").write_bytes(data)
    await cookie_folders.cookies.create_node("b1:3181", data)
    assert await cookie_folders.decision() is CookieDecision.BOOT
    assert (await cookie_folders.cookies.read_node("b1:3181")).data == data


async def test_index_directories_that_a_cookie_of_layout_4_cannot_name(cookie_folders: CookieFolders) -> None:
    """The trap of an upgrade (metadata section 7.2)."""
    data = encode_cookie(cookie_folders.expected).replace(b"5\n", b"4\n")
    for directory in ("j", "l1", "l2", "i1", "i2"):
        cookie_folders.fill(directory, None, has_data=True)
        (cookie_folders.directory / directory / "current" / "VERSION").write_bytes(data)
    await cookie_folders.cookies.create_node("b1:3181", data)
    cookie_folders.name_directories("j", "l1 l2", "i1 i2")
    assert "has layout 4, which has no index directories" in await cookie_folders.refusal()


@pytest.mark.parametrize("data", [b"", b"2\n", b"junk", b"5\nbookieHost: ", b"\xff\xfe"])
async def test_damaged_cookies(cookie_folders: CookieFolders, data: bytes) -> None:
    await booted(cookie_folders)
    version = cookie_folders.directory / "l2" / "current" / "VERSION"
    good = version.read_bytes()
    version.write_bytes(data)
    assert f"the VERSION file in {cookie_folders.directory / 'l2'} is damaged" in await cookie_folders.refusal()
    version.write_bytes(good)
    await cookie_folders.cookies.write_node("b1:3181", data, 0)
    assert "the stored cookie of bookie b1:3181 is damaged" in await cookie_folders.refusal()


async def test_layouts_before_3_and_directories_that_are_none(cookie_folders: CookieFolders) -> None:
    for name in ("VERSION", "1.txn", "0.log", "x.idx"):
        directory = cookie_folders.directory / f"with-{name}"
        directory.mkdir()
        (directory / name).write_bytes(b"")
        cookie_folders.name_directories(directory.name, "l1")
        assert "before 4.0" in await cookie_folders.refusal()
    (cookie_folders.directory / "file").write_bytes(b"")
    (cookie_folders.directory / "link").symlink_to(cookie_folders.directory / "nowhere")
    for name, reason in (("file", "Not a directory"), ("link", "broken link")):
        cookie_folders.name_directories(name, "l1")
        assert reason in await cookie_folders.refusal()


@pytest.mark.parametrize("spelling", ["l1/", "./l1", "l1//"])
@pytest.mark.parametrize("is_in_cookie", [False, True])
async def test_the_spelling_of_a_directory_does_not_matter(
    cookie_folders: CookieFolders, spelling: str, is_in_cookie: bool
) -> None:
    """The check leaves the cookies as they were written."""
    plain = cookie_folders.config
    paths = (f"{cookie_folders.directory}/{spelling}", plain.ledger_directories[1])
    spelled = msgspec.structs.replace(plain, ledger_directories=paths)
    first, second = (spelled, plain) if is_in_cookie else (plain, spelled)
    cookie_folders.config, cookie_folders.expected = first, expected_cookie(first, "b1:3181", "cluster-1")
    await booted(cookie_folders)
    cookie_folders.config, cookie_folders.expected = second, expected_cookie(second, "b1:3181", "cluster-1")
    assert await cookie_folders.decision() is CookieDecision.BOOT


async def test_a_directory_under_another_name(cookie_folders: CookieFolders) -> None:
    await booted(cookie_folders)
    (cookie_folders.directory / "l2").rename(cookie_folders.directory / "moved")
    cookie_folders.name_directories("j", "l1 moved")
    assert "moved directory" in await cookie_folders.refusal()
    (cookie_folders.directory / "moved").rename(cookie_folders.directory / "l2")
    (cookie_folders.directory / "moved").symlink_to(cookie_folders.directory / "l2")
    assert "moved directory" in await cookie_folders.refusal()


@pytest.mark.parametrize("name", ["a,b", "a\tb", "a\nb", " a", "a\udcff"])
def test_directories_that_no_cookie_can_name(name: str) -> None:
    config = StorageConfig(journal_directories=("/j",), ledger_directories=(name,))
    with pytest.raises(ConfigurationError, match="cannot be written in a cookie"):
        expected_cookie(config, "b1:3181", None)


@pytest.mark.parametrize(
    ("filled", "bare"),
    [("j l1 l2", []), ("j l1", ["l2", "i2"]), ("j l1 l2 i1", []), ("", ["j", "l1", "l2", "i1", "i2"])],
)
async def test_an_index_directory_is_not_emptied_while_its_ledger_directory_holds_files(
    cookie_folders: CookieFolders, filled: str, bare: list[str]
) -> None:
    # A Java bookie that was killed before its first flush has entry logs and no index; a lost index is rebuilt.
    cookie_folders.name_directories("j", "l1 l2", "i1 i2")
    for name in ("j", "l1", "l2", "i1", "i2"):
        cookie_folders.fill(name, OWN, has_data=name in filled.split())
    await cookie_folders.cookies.create(cookie_folders.expected)
    check = await cookie_folders.service.check(cookie_folders.expected)
    assert [Path(directory.path).name for directory in check.evidence.bare_directories] == bare
    assert check.depends_on_references == bool(bare)
