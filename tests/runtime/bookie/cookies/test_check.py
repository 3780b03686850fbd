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


class Stage:
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
def stage(tmp_path: Path, store: ZooKeeperStore, metadata_uri: str) -> Stage:
    return Stage(tmp_path, store, parse_metadata_uri(metadata_uri).root)


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
    stage: Stage, stored: str | None, directories: list[tuple[str | None, bool]], outcome: CookieDecision | str
) -> None:
    for name, (whose, has_data) in zip(("j", "l1", "l2"), directories, strict=True):
        stage.fill(name, whose, has_data=has_data)
    if stored is not None:
        await stage.cookies.create_node("b1:3181", encode_cookie(stage.cookie(stored)))
    if isinstance(outcome, CookieDecision):
        assert await stage.decision() is outcome
    else:
        refusal = await stage.refusal()
        assert outcome in refusal
        assert "bkctl cookie verify" in refusal


async def booted(stage: Stage, *, has_data: bool = True) -> None:
    """A bookie that has been stamped, and has stored something."""
    await stage.service.stamp(stage.expected, (await stage.service.check(stage.expected)).stored_version)
    for path in stage.config.all_directories:
        stage.fill(Path(path).name, OWN, has_data=has_data)
    record_places(DISK, stage.config)
    assert await stage.decision() is CookieDecision.BOOT


@pytest.mark.parametrize("name", ["j", "l1", "l2"])
async def test_a_directory_that_is_gone(stage: Stage, name: str) -> None:
    await booted(stage)
    (stage.directory / name).rename(stage.directory / "elsewhere")
    assert f"missing disk: {stage.directory / name} does not exist" in await stage.refusal()


@pytest.mark.parametrize("journals", ["j", "j2 j"])
@pytest.mark.parametrize("ledgers", ["l1", "l2 l1", "l1 l2 l3", "l3 l1 l2", "l1 l3 l2"])
@pytest.mark.parametrize("is_expansion_allowed", [False, True])
async def test_lists_changed_in_number_or_order(
    stage: Stage, journals: str, ledgers: str, is_expansion_allowed: bool
) -> None:
    await booted(stage)
    stage.is_expansion_allowed = is_expansion_allowed
    stage.name_directories(journals, ledgers)
    assert "number or order of the directories" in await stage.refusal()


@pytest.mark.parametrize("ledgers", ["l1", "l2 l1", "l1 l2 l3", "l3 l1 l2"])
async def test_lists_changed_and_the_cookies_with_them(stage: Stage, ledgers: str) -> None:
    """What Java's ``updatecookie -e`` and hands can do: every cookie agrees, and the entries are on the wrong disk."""
    await booted(stage)
    stage.name_directories("j", ledgers)
    for path in stage.config.all_directories:
        stage.fill(Path(path).name, OWN, has_data=False)
    await stage.cookies.write(stage.expected, 0)
    refusal = await stage.refusal()
    is_swapped = ledgers == "l2 l1"
    assert ("swapped volumes" if is_swapped else "although its cookie matches") in refusal
    stage.is_expansion_allowed = True
    assert await stage.refusal() == refusal


async def test_journals_in_another_order_whatever_the_cookies_say(stage: Stage) -> None:
    stage.name_directories("j1 j2", "l1")
    await booted(stage)
    stage.name_directories("j2 j1", "l1")
    for path in stage.config.all_directories:
        stage.fill(Path(path).name, OWN, has_data=False)
    await stage.cookies.write(stage.expected, 0)
    assert "swapped volumes" in await stage.refusal()


async def test_expansion_of_a_bookie_without_ledgers(stage: Stage) -> None:
    await booted(stage, has_data=False)
    stage.name_directories("j", "l1 l2 l3")
    assert "bkctl cookie verify" in await stage.refusal()
    stage.is_expansion_allowed = True
    check = await stage.service.check(stage.expected)
    assert check.decision is CookieDecision.EXPAND
    await stage.service.stamp(stage.expected, check.stored_version)
    assert (await stage.cookies.read("b1:3181")).value == stage.expected
    record_places(DISK, stage.config)
    assert await stage.decision() is CookieDecision.BOOT
    with pytest.raises(BadVersionError):
        await stage.service.stamp(stage.expected, check.stored_version)


@pytest.mark.parametrize("stamped", [[], ["j"], ["j", "l1"], ["j", "l1", "l2"], ["j", "l1", "l2", "l3"]])
async def test_an_expansion_that_was_cut_off_goes_on(stage: Stage, stamped: list[str]) -> None:
    await booted(stage, has_data=False)
    stage.name_directories("j", "l1 l2 l3")
    stage.is_expansion_allowed = True
    for name in stamped:
        stage.fill(name, OWN, has_data=False)
    assert await stage.decision() is CookieDecision.EXPAND


@pytest.mark.parametrize(("name", "content"), [("l1", None), ("l3", "0.log"), ("j", None)])
async def test_no_expansion_over_a_lost_directory_or_strange_files(
    stage: Stage, name: str, content: str | None
) -> None:
    await booted(stage, has_data=False)
    stage.name_directories("j", "l1 l2 l3")
    stage.is_expansion_allowed = True
    if content is None:
        (stage.directory / name / "current" / "VERSION").unlink()
    else:
        (stage.directory / name / "current").mkdir(parents=True)
        (stage.directory / name / "current" / content).write_bytes(b"x")
    await stage.refusal()


@pytest.mark.parametrize("stamped", [[], ["j"], ["j", "l1"], ["j", "l1", "l2"]])
async def test_a_first_start_that_was_cut_off_is_stamped_again(stage: Stage, stamped: list[str]) -> None:
    for name in stamped:
        stage.fill(name, OWN, has_data=False)
    check = await stage.service.check(stage.expected)
    assert check.decision is CookieDecision.STAMP
    await stage.service.stamp(stage.expected, check.stored_version)
    assert await stage.decision() is CookieDecision.BOOT


async def test_two_new_bookies_of_one_id_are_not_both_stamped(stage: Stage, tmp_path: Path) -> None:
    other = Stage(tmp_path / "other", stage.store, stage.root)
    check, other_check = await stage.service.check(stage.expected), await other.service.check(other.expected)
    await stage.service.stamp(stage.expected, check.stored_version)
    with pytest.raises(NodeExistsError):
        await other.service.stamp(other.expected, other_check.stored_version)
    assert await stage.decision() is CookieDecision.BOOT
    assert "changed" in await other.refusal() or "other directories" in await other.refusal()


async def test_candidate_ids(stage: Stage) -> None:
    """Step 2: the cluster knows this host by another id, be it an address or a name."""
    former = msgspec.structs.replace(stage.expected, bookie_id="10.0.0.7:3181")
    await stage.cookies.create(former)
    assert await stage.decision() is CookieDecision.STAMP
    assert await stage.decision("b1:3181", "b1.example:3181") is CookieDecision.STAMP
    assert "belongs to bookie 10.0.0.7:3181" in await stage.refusal("10.0.0.7:3181")
    await booted(stage)
    assert "belongs to bookie 10.0.0.7:3181" in await stage.refusal("10.0.0.7:3181")


@pytest.mark.parametrize(
    ("how", "name"),
    [
        (lambda text: text.replace(b"5\n", b"4\n"), "4"),
        (lambda _: b"3\nb1:3181\n%(j)s\n2\t%(l1)s\t%(l2)s\n", "3"),
    ],
    ids=["layout 4", "layout 3"],
)
async def test_older_layouts_boot_and_are_not_rewritten(stage: Stage, how: Callable[[bytes], bytes], name: str) -> None:
    names = {key.encode(): str(stage.directory / key).encode() for key in ("j", "l1", "l2")}
    stage.expected = msgspec.structs.replace(stage.expected, instance_id=None)
    data = how(encode_cookie(stage.expected))
    data = data % names if name == "3" else data
    for directory in ("j", "l1", "l2"):
        stage.fill(directory, None, has_data=True)
        (stage.directory / directory / "current" / "VERSION").write_bytes(data)
    await stage.cookies.create_node("b1:3181", data)
    assert await stage.decision() is CookieDecision.BOOT
    assert (await stage.cookies.read_node("b1:3181")).data == data


async def test_index_directories_that_a_cookie_of_layout_4_cannot_name(stage: Stage) -> None:
    """The trap of an upgrade (metadata section 7.2)."""
    data = encode_cookie(stage.expected).replace(b"5\n", b"4\n")
    for directory in ("j", "l1", "l2", "i1", "i2"):
        stage.fill(directory, None, has_data=True)
        (stage.directory / directory / "current" / "VERSION").write_bytes(data)
    await stage.cookies.create_node("b1:3181", data)
    stage.name_directories("j", "l1 l2", "i1 i2")
    assert "has layout 4, which has no index directories" in await stage.refusal()


@pytest.mark.parametrize("data", [b"", b"2\n", b"junk", b"5\nbookieHost: ", b"\xff\xfe"])
async def test_damaged_cookies(stage: Stage, data: bytes) -> None:
    await booted(stage)
    version = stage.directory / "l2" / "current" / "VERSION"
    good = version.read_bytes()
    version.write_bytes(data)
    assert f"the VERSION file in {stage.directory / 'l2'} is damaged" in await stage.refusal()
    version.write_bytes(good)
    await stage.cookies.write_node("b1:3181", data, 0)
    assert "the stored cookie of bookie b1:3181 is damaged" in await stage.refusal()


async def test_layouts_before_3_and_directories_that_are_none(stage: Stage) -> None:
    for name in ("VERSION", "1.txn", "0.log", "x.idx"):
        directory = stage.directory / f"with-{name}"
        directory.mkdir()
        (directory / name).write_bytes(b"")
        stage.name_directories(directory.name, "l1")
        assert "before 4.0" in await stage.refusal()
    (stage.directory / "file").write_bytes(b"")
    (stage.directory / "link").symlink_to(stage.directory / "nowhere")
    for name, reason in (("file", "Not a directory"), ("link", "broken link")):
        stage.name_directories(name, "l1")
        assert reason in await stage.refusal()


@pytest.mark.parametrize("spelling", ["l1/", "./l1", "l1//"])
@pytest.mark.parametrize("is_in_cookie", [False, True])
async def test_the_spelling_of_a_directory_does_not_matter(stage: Stage, spelling: str, is_in_cookie: bool) -> None:
    """The check leaves the cookies as they were written."""
    plain = stage.config
    paths = (f"{stage.directory}/{spelling}", plain.ledger_directories[1])
    spelled = msgspec.structs.replace(plain, ledger_directories=paths)
    first, second = (spelled, plain) if is_in_cookie else (plain, spelled)
    stage.config, stage.expected = first, expected_cookie(first, "b1:3181", "cluster-1")
    await booted(stage)
    stage.config, stage.expected = second, expected_cookie(second, "b1:3181", "cluster-1")
    assert await stage.decision() is CookieDecision.BOOT


async def test_a_directory_under_another_name(stage: Stage) -> None:
    await booted(stage)
    (stage.directory / "l2").rename(stage.directory / "moved")
    stage.name_directories("j", "l1 moved")
    assert "moved directory" in await stage.refusal()
    (stage.directory / "moved").rename(stage.directory / "l2")
    (stage.directory / "moved").symlink_to(stage.directory / "l2")
    assert "moved directory" in await stage.refusal()


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
    stage: Stage, filled: str, bare: list[str]
) -> None:
    # A Java bookie that was killed before its first flush has entry logs and no index; a lost index is rebuilt.
    stage.name_directories("j", "l1 l2", "i1 i2")
    for name in ("j", "l1", "l2", "i1", "i2"):
        stage.fill(name, OWN, has_data=name in filled.split())
    await stage.cookies.create(stage.expected)
    check = await stage.service.check(stage.expected)
    assert [Path(directory.path).name for directory in check.evidence.bare_directories] == bare
    assert check.depends_on_references == bool(bare)
