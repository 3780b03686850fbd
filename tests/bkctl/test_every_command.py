"""Rules that hold for every command of the app: its effect, the options that follow, and what stops it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bkctl.app import build_app
from bkctl.commands.config import GlobalFlags
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.shared_options import GLOBAL_PARAMETERS, declarations
from bkctl.exit_codes import SERVER_COMMANDS
from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.bkctl.conftest import RunMain
from tests.bkctl.test_main import NO_SERVER, leaves
from tests.runtime.metadata.trees import PlantedNode, read_tree

APP = build_app()
COMMANDS = {name.removeprefix("bkctl "): command for name, command in leaves(APP)}
BOOKIE = "b1:3181"
VALUES = {"--output": "json", "--color": "never", "--zk-rate": "9", "--limit": "9"}
OUTPUT_OPTIONS = {"--output", "--no-headers", "--quiet", "--debug", "--color", "--no-progress", "--config"}
CLUSTER_OPTIONS = {"--metadata-uri", "--context", "--conf"}
PLAN_OPTIONS = {"--dry-run", "--yes", "--plan-out", "--apply"}
CHANGE_OPTIONS = PLAN_OPTIONS | {"--confirm"}
OPTIONS_OF_EFFECT = {
    Effect.LOOKS: set[str](),
    Effect.REVERSIBLE: PLAN_OPTIONS,
    Effect.HARMFUL: PLAN_OPTIONS,
    Effect.DESTROYS: PLAN_OPTIONS | {"--confirm"},
    Effect.SERVES: {"--dry-run", "--yes"},
}
EFFECTS = {
    "autorecovery delay set": {Effect.REVERSIBLE},
    "autorecovery disable": {Effect.HARMFUL},
    "autorecovery enable": {Effect.REVERSIBLE},
    "autorecovery maintenance end": {Effect.REVERSIBLE},
    "autorecovery maintenance start": {Effect.REVERSIBLE},
    "autorecovery repair-marks": {Effect.HARMFUL},
    "autorecovery reset-checks": {Effect.REVERSIBLE},
    "autorecovery trigger": {Effect.REVERSIBLE},
    "bookie drain": {Effect.HARMFUL},
    "bookie format": {Effect.DESTROYS},
    "bookie index rebuild": {Effect.HARMFUL, Effect.REVERSIBLE},
    "bookie gc confirm": {Effect.DESTROYS},
    "bookie gc resume": {Effect.REVERSIBLE},
    "bookie gc run": {Effect.REVERSIBLE},
    "bookie gc suspend": {Effect.REVERSIBLE},
    "bookie init": {Effect.REVERSIBLE},
    "bookie log-level": {Effect.REVERSIBLE},
    "bookie sanity": {Effect.REVERSIBLE},
    "bookie set-mode": {Effect.HARMFUL, Effect.REVERSIBLE},
    "autorecovery start": {Effect.SERVES},
    "bookie start": {Effect.SERVES},
    "bookie stop": {Effect.HARMFUL},
    "bookie undrain": {Effect.REVERSIBLE},
    "cluster format": {Effect.DESTROYS},
    "cluster health-check disable": {Effect.REVERSIBLE},
    "cluster health-check enable": {Effect.REVERSIBLE},
    "cluster init": {Effect.REVERSIBLE},
    "cluster nuke": {Effect.DESTROYS},
    "cluster restore": {Effect.DESTROYS},
    "config use-context": {Effect.REVERSIBLE},
    "log append": {Effect.REVERSIBLE},
    "log create": {Effect.REVERSIBLE},
    "log delete": {Effect.DESTROYS},
    "log trim": {Effect.DESTROYS},
    "tls init": {Effect.REVERSIBLE},
    "cookie create": {Effect.HARMFUL},
    "cookie delete": {Effect.DESTROYS},
    "cookie expand": {Effect.HARMFUL},
    "cookie migrate": {Effect.DESTROYS},
    "cookie update": {Effect.DESTROYS},
    "decommission": {Effect.HARMFUL},
    "dev cluster down": {Effect.SERVES},
    "dev cluster kill": {Effect.SERVES},
    "dev cluster start": {Effect.SERVES},
    "dev cluster up": {Effect.SERVES},
    "dev zookeeper": {Effect.SERVES},
    "ledger close": {Effect.DESTROYS, Effect.HARMFUL},
    "ledger delete": {Effect.DESTROYS},
    "ledger import": {Effect.DESTROYS, Effect.HARMFUL},
    "ledger rewrite-bookie": {Effect.DESTROYS},
    "ledger write-test": {Effect.REVERSIBLE},
    "recover failed-bookie": {Effect.HARMFUL},
    "recover ledger": {Effect.HARMFUL},
    "storage adopt": {Effect.HARMFUL},
    "storage hand-back": {Effect.HARMFUL},
    "storage index rebuild": {Effect.HARMFUL},
    "storage journal replay": {Effect.HARMFUL},
    "storage limbo end": {Effect.HARMFUL},
}
"""Every other command looks and changes nothing."""


def shown_options(name: str) -> set[str]:
    """Options that the command's help page explains or names."""
    return {option for each in COMMANDS[name].params if not getattr(each, "hidden", False) for option in each.opts}


def effects_of(name: str) -> set[Effect]:
    """The effects that the command declares; an AttributeError for one that was not registered by ``command()``."""
    return set(COMMANDS[name].callback.effects)


CHANGING = sorted(name for name in COMMANDS if effects_of(name) != {Effect.LOOKS})


def test_every_command_has_the_effect_that_is_known_of_it_and_its_options() -> None:
    assert {name: effects_of(name) for name in CHANGING} == EFFECTS
    for name in COMMANDS:
        of_effects = set[str]().union(*(OPTIONS_OF_EFFECT[effect] for effect in effects_of(name)))
        assert shown_options(name) & CHANGE_OPTIONS == of_effects, name


def words_for(name: str) -> list[str]:
    """The command with everything that it requires; a file that does not exist where it wants a file."""
    by_metavar = {
        "ID": BOOKIE,
        "LEDGER": "0",
        "SECONDS": "5",
        "MODE": "read-only",
        "LEVEL": "info",
        "SHELL": "bash",
    }
    words = name.split()
    for parameter in COMMANDS[name].params:
        is_option = parameter.param_type_name == "option"
        metavar = (parameter.metavar or "").strip("[].")
        if parameter.required or (not is_option and metavar == "LEDGER"):
            words += [*parameter.opts[:is_option], by_metavar.get(metavar, "1")]
    directories = ["--journal-dir", "/nowhere/j", "--ledger-dir", "/nowhere/l"]
    more = {
        "autorecovery maintenance start": [BOOKIE],
        "cluster init": ["--if-not-exists"],
        "bookie format": [*directories, "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true"],
        "bookie init": [*directories, "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true"],
        "bookie index rebuild": [BOOKIE, "--online"],
        "bookie sanity": [BOOKIE],
        "recover ledger": ["0"],
        **{f"bookie {name}": ["--ledger-dir", "/nowhere"] for name in ("log-level", "set-mode", "stop")},
        **{f"bookie gc {name}": ["--ledger-dir", "/nowhere"] for name in ("confirm", "resume", "run", "suspend")},
    }
    return [*words, *more.get(name, ())]


class Entered(Exception):  # noqa: N818  it is no failure
    """The command accepted its options."""


class Probe:
    """The application's side of a run that ends as soon as the command has accepted its options."""

    root_flags = GlobalFlags()

    def set_root_flags(self, flags: GlobalFlags) -> None:
        self.root_flags = flags

    def enter(self, command_path: str, flags: GlobalFlags) -> CommandContext:
        raise Entered


def is_taken(words: list[str]) -> bool:
    try:
        APP.main(words, prog_name="bkctl", standalone_mode=False, obj=Probe())
    except Entered:
        return True
    except typer.TyperException as error:
        sentence = error.format_message()
    else:
        sentence = "it ended"
    assert "is not supported by bkctl" in sentence, words
    return False


def expected_options(name: str) -> set[str]:
    """Global options that the command takes: all for its output, those of a cluster, and those of its effect."""
    taken = OUTPUT_OPTIONS | (shown_options(name) & (CHANGE_OPTIONS | {"--sort", "--limit"}))
    without_cluster = {"audit show", "completion", "config contexts", "config use-context", "tls init"}
    if not name.startswith("dev ") and name not in without_cluster:
        taken |= CLUSTER_OPTIONS
        if not name.startswith("storage ") or name in {"storage adopt", "storage hand-back", "storage journal replay"}:
            taken |= {"--timeout", "--zk-rate"}
    return taken - ({"--zk-rate"} if name in {"bookie start", "tls check"} else set())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_option_that_a_command_does_not_support_is_refused_on_either_side_of_its_name(name: str) -> None:
    own = {
        option
        for each in COMMANDS[name].params
        if each.name not in GlobalFlags.__struct_fields__
        for option in each.opts
    }
    for parameter in GLOBAL_PARAMETERS:
        option = declarations(parameter)[0]
        is_flag = parameter.annotation.__args__[0] == (bool | None)
        given = [option] if is_flag else [option, VALUES.get(option, "x")]
        expected = option in expected_options(name)
        if option not in own:
            is_useful = not (name.startswith("storage ") and option in {"--metadata-uri", "--context"})
            is_shown = option in shown_options(name)
            assert is_shown is expected if is_useful else not is_shown or expected, f"bkctl {name} --help: {option}"
        assert is_taken([*given, *words_for(name)]) is expected, f"bkctl {option} {name}"
        if option not in own:
            assert is_taken([*words_for(name), *given]) is expected, f"bkctl {name} {option}"


def test_the_exit_code_of_an_option_that_is_not_supported(run_main: RunMain) -> None:
    for arguments in (
        ("--dry-run", "ledger", "list"),
        ("ledger", "list", "--plan-out", "p"),
        ("cluster", "info", "--sort", "root"),
        ("ledger", "delete", "1", "--limit", "1"),
        ("--yes", "cluster", "health-check", "status"),
        ("decommission", BOOKIE, "--confirm", BOOKIE),
    ):
        result = run_main(*arguments, "-u", NO_SERVER)
        assert result.exit_code == 2, arguments
        assert re.fullmatch(r"error: --[a-z-]+ is not supported by bkctl .* \(see bkctl .* --help\)\n", result.stderr)
    for name in sorted(SERVER_COMMANDS):
        assert run_main(*name.split(), "--plan-out", "p").exit_code == 1, name


def test_what_the_environment_says_is_ignored_where_it_means_nothing(run_main: RunMain) -> None:
    result = run_main("ledger", "list", "-u", NO_SERVER, "--timeout", "100ms", BKCTL_YES="1", BKCTL_READ_ONLY="1")
    assert result.exit_code == 6


@pytest.mark.parametrize("name", CHANGING)
def test_read_only_mode_stops_every_command_that_changes_something(
    run_main: RunMain, tmp_path: Path, name: str
) -> None:
    (tmp_path / "c.toml").write_text(f'[contexts.prod]\nmetadata_uri = "{NO_SERVER}"\nread_only = true\n')
    before = sorted(os.listdir(tmp_path))
    refused = 1 if name in SERVER_COMMANDS else 3
    by_environment = run_main(*words_for(name), BKCTL_READ_ONLY="1")
    assert by_environment.exit_code == refused
    assert by_environment.stderr == ("error: nothing was changed: bkctl is in read-only mode: BKCTL_READ_ONLY is set\n")
    if not name.startswith(("dev ", "config ", "tls ")):  # these know no cluster, or only their own
        by_context = run_main(*words_for(name), "--config", "c.toml", "--context", "prod")
        assert by_context.exit_code == refused
        assert "in read-only mode: context prod is read-only" in by_context.stderr
    assert sorted(os.listdir(tmp_path)) == before


class StoppedCluster:
    """A cluster whose bookies are all stopped, with a ledger and a cookie. It looks at it through one session."""

    def __init__(self, metadata_uri: str) -> None:
        self.uri = parse_metadata_uri(metadata_uri)
        self._runner = asyncio.Runner()
        self._store = self._runner.run(ZooKeeperStore.connect(self.uri.servers, ZooKeeperConfig()))

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()

    def on_store(self, act: Callable[[MetadataStore], Any]) -> Any:
        return self._runner.run(act(self._store))

    def plant(self, password: bytes = b"") -> None:
        metadata = to_closed(new_ledger((BOOKIE,), 1, 1, DigestType.CRC32C, password), 9, 100)

        async def create(store: MetadataStore) -> None:
            root = self.uri.root
            await store.create(f"{root}/00/0000/L0000", encode_ledger_metadata(metadata), make_parents=True)
            cookie = Cookie(bookie_id=BOOKIE, journal_directories=("/j",), ledger_directories=("/l",))
            await store.create(f"{root}/cookies/{BOOKIE}", encode_cookie(cookie), make_parents=True)

        self.on_store(create)

    def tree(self) -> dict[str, PlantedNode]:
        found: dict[str, PlantedNode] = self.on_store(lambda store: read_tree(store, self.uri.root))
        return found


@pytest.fixture
def stopped(metadata_uri: str) -> Iterator[StoppedCluster]:
    stopped = StoppedCluster(metadata_uri)
    yield stopped
    stopped.close()


def test_no_command_changes_a_cluster_in_read_only_mode_or_for_a_plan(
    run_main: RunMain, metadata_uri: str, stopped: StoppedCluster, tmp_path: Path
) -> None:
    """Every command of the app but the servers, with arguments that get most of them as far as their plan."""
    assert run_main("cluster", "init", "-u", metadata_uri).exit_code == 0
    stopped.plant()
    before = stopped.tree()
    planned = set()
    for name in sorted(set(COMMANDS) - SERVER_COMMANDS):
        words = [*words_for(name), *([] if name.startswith("dev ") else ["-u", metadata_uri])]
        answers = [["--confirm", BOOKIE], ["--confirm", "0"]] if "--confirm" in shown_options(name) else []
        answers += [["--yes"]] if "--yes" in shown_options(name) else []
        runs = [([*words, *answer], {"BKCTL_READ_ONLY": "1"}) for answer in answers or [[]]]
        for option in (["--dry-run"], ["--plan-out", "plan"]):
            runs += [([*words, *option, *answer], {}) for answer in answers or [[]]]
            runs += [([*option, *words], {"BKCTL_READ_ONLY": "1"})]
        for arguments, environment in runs:
            result = run_main(*arguments, **environment)
            assert "internal error" not in result.stderr, arguments
            if result.exit_code == 0 and (tmp_path / "plan").exists():
                planned.add(name)
                plan = json.loads((tmp_path / "plan").read_text())
                said = [*plan["summary"][:1], *(each["finding"] for each in plan["findings"])]
                assert not plan["items"] or not said or any("will " in each for each in said), plan
                (tmp_path / "plan").unlink()
            assert stopped.tree() == before, f"{arguments} {environment}"
    assert {"cluster nuke", "cluster health-check disable", "autorecovery disable", "recover failed-bookie"} <= planned
    assert {"decommission", "ledger delete", "cluster init", "ledger write-test"} <= planned


def test_a_pinned_context_stops_every_command_that_changes_another_cluster(
    run_main: RunMain, metadata_uri: str, stopped: StoppedCluster, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(f'[contexts.prod]\nmetadata_uri = "{metadata_uri}"\ninstance_id = "another"\n')
    pinned = ("--config", "c.toml", "--context", "prod")
    absent = run_main("cluster", "init", *pinned)
    assert (absent.exit_code, "another, but this cluster has none" in absent.stderr) == (3, True)
    assert run_main("cluster", "init", "-u", metadata_uri).exit_code == 0
    stopped.plant()
    before = stopped.tree()
    refused_otherwise = set()
    for name in CHANGING:
        if name in SERVER_COMMANDS or name.startswith(("dev ", "storage ", "config ", "tls ")):
            continue
        words = [*words_for(name), *pinned]
        words += ["--yes"] if "--yes" in shown_options(name) else []
        words += ["--confirm", "0"] if "--confirm" in shown_options(name) else []
        result = run_main(*words)
        assert result.exit_code != 0, name
        assert stopped.tree() == before, name
        if "is pinned to instance id another" not in result.stderr:
            refused_otherwise.add(name)
    # These find another reason before they have a plan: no auditor, no file or directory, no running bookie, a ledger
    # of the bookie, no log.
    assert refused_otherwise == {
        "log append",
        "log delete",
        "log trim",
        "autorecovery trigger",
        "bookie format",
        "bookie index rebuild",
        "bookie gc confirm",
        "bookie gc resume",
        "bookie gc run",
        "bookie gc suspend",
        "bookie log-level",
        "bookie set-mode",
        "bookie stop",
        "bookie undrain",
        "cluster restore",
        "cookie create",
        "cookie delete",
        "cookie expand",
        "cookie migrate",
        "cookie update",
        "ledger import",
        "ledger rewrite-bookie",
    }


SECRET = "Pa55-word-of-a-ledger"
LOGIN_SECRET = "s3cret-of-a-user"
DAMAGED = (
    f'BookieMetadataFormatVersion\t2\nquorumSize: 1\nensembleSize: 1\npassword: "{SECRET}"\nlength: many\nstate: OPEN\n'
)


def spellings(secret: str) -> list[str]:
    data = secret.encode()
    return [secret, data.hex(), base64.b64encode(data).decode().rstrip("="), str(list(data))]


@pytest.mark.parametrize(
    "form",
    [
        "table",
        "json",
        "debug",
        *(pytest.param(form, marks=pytest.mark.battery) for form in ("wide", "yaml", "csv", "name", "jsonl")),
    ],
)
def test_no_command_prints_a_secret_in_any_output_form(
    run_main: RunMain, metadata_uri: str, stopped: StoppedCluster, tmp_path: Path, form: str
) -> None:
    """Ledger passwords, in metadata that can be read and that cannot, and the password for ZooKeeper.

    ``ledger export`` is left out: the bytes of the metadata are what it is for, as its help page says.
    """
    assert run_main("cluster", "init", "-u", metadata_uri).exit_code == 0
    stopped.plant(SECRET.encode())
    path = f"{stopped.uri.root}/00/0000/L0001"
    stopped.on_store(lambda store: store.create(path, DAMAGED.encode()))
    secrets = [spelling for secret in (SECRET, LOGIN_SECRET) for spelling in spellings(secret)]
    shown_ledgers = 0
    for name in sorted(set(COMMANDS) - {"ledger export"}):
        words = [*words_for(name), *([] if name.startswith("dev ") else ["-u", metadata_uri])]
        words += ["--dry-run"] if name in CHANGING else []
        words += ["--debug"] if form == "debug" else ["-o", form]
        result = run_main(*words, BKCTL_ZOOKEEPER_DIGEST=f"user:{LOGIN_SECRET}", BKCTL_LEDGER_PASSWORD=SECRET)
        told = result.stdout + result.stderr
        assert [secret for secret in secrets if secret in told] == [], f"bkctl {name}: {told}"
        shown_ledgers += name.startswith("ledger show") and result.exit_code == 0
    assert shown_ledgers == 1
    for directory, _, files in os.walk(tmp_path):
        for file in files:
            text = Path(directory, file).read_text(errors="replace")
            assert [secret for secret in secrets if secret in text] == [], file
