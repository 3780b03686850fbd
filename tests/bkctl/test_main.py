"""The command line as a whole, as far as it needs no cluster."""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bkctl.commands
from bkctl.app import build_app
from bkctl.command_tree import COMMANDS
from bkctl.commands.command import Command
from bkctl.commands.config import Settings
from bkctl.main import describe
from bkctl.runtime.errors import ConfigurationError, MetadataUnavailableError
from tests.bkctl.conftest import RunMain
from tests.processes import COMMAND_TIMEOUT_S, bkctl_command, bkctl_environment, run_bkctl, run_bkctl_on_terminal

NO_SERVER = "zk://127.0.0.1:1/ledgers"


def test_help_names_every_group(run_main: RunMain) -> None:
    result = run_main("--help")
    assert result.exit_code == 0
    for name in ("bookie", "cluster", "ledger", "recover", "decommission", "audit", "dev"):
        assert f"\n  {name} " in result.stdout


def test_without_arguments_the_help_page_is_an_error(run_main: RunMain) -> None:
    for arguments in ((), ("ledger",), ("dev", "cluster")):
        result = run_main(*arguments)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert result.stderr.startswith("Usage: bkctl")


def test_help_pages_name_the_options_of_the_command(run_main: RunMain) -> None:
    def options(*command: str) -> set[str]:
        return set(re.findall(r"--[a-z-]+", run_main(*command, "--help").stdout))

    assert {"--yes", "--dry-run", "--accept-loss"} <= options("decommission")
    assert {"--sort", "--limit", "--bookie"} <= options("ledger", "list")
    assert {"--conf", "--config", "--set", "--journal-dir"} <= options("bookie", "start")
    assert "--dir" in options("dev", "cluster", "status")
    assert options("dev", "cluster", "status").isdisjoint({"--metadata-uri", "--sort", "--dry-run"})
    assert {"--output", "--metadata-uri", "--sort", "--dry-run"} <= options("options")


def leaves(member: Any, name: str = "bkctl") -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its whole name."""
    names = member.list_commands(None) if hasattr(member, "list_commands") else []
    for each in names:
        yield from leaves(member.get_command(None, each), f"{name} {each}")
    if not names:
        yield name, member


def test_no_command_has_one_spelling_for_two_options() -> None:
    seen = dict(leaves(build_app()))
    assert len(seen) > 40
    for name, command in seen.items():
        spellings = [spelling for parameter in command.params for spelling in parameter.opts]
        assert sorted(spellings) == sorted(set(spellings)), name


def test_an_option_has_one_meaning_in_all_commands() -> None:
    kinds: dict[str, set[str]] = {}
    for _, command in leaves(build_app()):
        for parameter in command.params:
            kind = "flag" if getattr(parameter, "is_flag", False) else str(parameter.metavar or parameter.type)
            for spelling in parameter.opts if parameter.param_type_name == "option" else ():
                kinds.setdefault(spelling, set()).add(kind)
    # begin and end of a range, a move or a copy; a file or a directory that is written; states of ledgers and bookies;
    # a bookie by its id or by its host
    several = {spelling for spelling, each in kinds.items() if len(each) > 1}
    assert several == {"--bookie", "--from", "--to", "--out", "--state"}
    assert kinds["--copy-rate"] == {"RATE"}
    names = {"--zk-rate", "--max-per-second", "--from-file", "--ledger-dir", "--journal-dir", "--accept-loss"}
    assert names <= kinds.keys()
    gone = {"--rate", "--output-file", "--findings", "--only", "--file", "--directory", "--accept-data-loss"}
    assert kinds.keys().isdisjoint(gone)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("ledger", "list", "--rate", "5"), "--zk-rate"),
        (("ledger", "export", "--to", "x"), "--out"),
        (("bookie", "format", "--accept-data-loss"), "--accept-loss"),
        (("cookie", "create", "--file", "x"), "--from-file"),
    ],
)
def test_a_former_name_of_an_option_is_answered_with_the_likely_one(
    run_main: RunMain, words: tuple[str, ...], meant: str
) -> None:
    result = run_main(*words)
    assert result.exit_code == 2
    assert re.search(rf"No such option: --[a-z-]+ \(Possible options: .*{meant}\b", result.stderr)


def test_a_short_option_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = {}
    for _, command in leaves(build_app()):
        for parameter in command.params:
            short, long = (sorted((each for each in parameter.opts), key=len)[index] for index in (0, -1))
            if short != long and parameter.param_type_name != "argument":
                meanings.setdefault(short, set()).add(long)
            assert "--watch" not in parameter.opts or "-w" in parameter.opts
    assert {short: len(longs) for short, longs in meanings.items() if len(longs) > 1} == {}
    assert meanings["-w"] == {"--watch"}


def test_version(run_main: RunMain) -> None:
    assert run_main("--version").stdout == "bkctl 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["audt"], "error: No such command 'audt'. Did you mean 'audit'? (see bkctl --help)"),
        (["ledger", "shw"], "error: No such command 'shw'. Did you mean 'show'? (see bkctl ledger --help)"),
        (["ledger", "show"], "error: Missing argument 'LEDGER...' (see bkctl ledger show --help)"),
        (
            ["completion"],
            "error: Missing argument 'SHELL'. Choose from: bash, zsh, fish (see bkctl completion --help)",
        ),
        (
            ["ledger", "list", "--nope"],
            "error: No such option: --nope (Possible options: --no-progress) (see bkctl ledger list --help)",
        ),
        (["ledger", "list", "--conf"], "error: Option '--conf' requires an argument (see bkctl ledger list --help)"),
        (
            ["ledger", "show", "x1"],
            "error: 'x1' is not a ledger id: use a decimal number, 0x and hexadecimal digits, or a UUID",
        ),
        (["drain"], "error: No such command 'drain': did you mean bkctl bookie drain? (see bkctl --help)"),
        (
            ["explain", "5"],
            "error: No such command 'explain': did you mean bkctl ledger explain or bkctl config explain? "
            "(see bkctl --help)",
        ),
        (
            ["bookie", "maintenance"],
            "error: No such command 'maintenance': did you mean bkctl autorecovery maintenance? (see bkctl bookie "
            "--help)",
        ),
        (
            ["autorecovery", "maintenance", "stop", "b1:3181"],
            "error: No such command 'stop': did you mean bkctl autorecovery maintenance end? (see bkctl autorecovery "
            "maintenance --help)",
        ),
        (["ledger", "stop"], "error: No such command 'stop' (see bkctl ledger --help)"),
        (["bookie", "delete"], "error: No such command 'delete' (see bkctl bookie --help)"),
        (["nothing-like-it"], "error: No such command 'nothing-like-it' (see bkctl --help)"),
        (["ledger", "verify"], "error: specify ledger IDs or --all"),
        (["ledger", "verify", "1", "--all"], "error: --all means every ledger: omit 1 or --all"),
        (
            ["ledger", "write-test", "-E", "2", "-W", "3"],
            "error: ensemble size >= write quorum >= ack quorum > 0 is required, got 2/3/2",
        ),
        (
            ["bookie", "list", "--timeout", "soon"],
            "error: 'soon' is not a duration: use a positive number with ms, s, m or h, like 30s",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_code_2(run_main: RunMain, arguments: list[str], sentence: str) -> None:
    result = run_main(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence + "\n")


def test_a_server_without_the_value_of_an_option_has_the_code_of_wrong_usage_of_servers(run_main: RunMain) -> None:
    result = run_main("bookie", "start", "--conf")
    assert result.stderr == "error: Option '--conf' requires an argument (see bkctl bookie start --help)\n"
    assert result.exit_code == run_main("bookie", "start", "--nope").exit_code == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--accept-loss", "b1:1"), "names the bookies that leave, for the ledgers of --from-file: b2:1 "),
        (("--accept-loss", "b1:1", "--accept-loss", "b3:1"), "of --from-file: b2:1, b3:1 "),
        (("--from-file", "ids"), "of --from-file: b1:1, b2:1 "),
        (("--accept-loss", "b1:1", "--accept-loss", "b2:1"), "--accept-loss needs --from-file FILE "),
        (
            ("--accept-loss", "b1:1", "--accept-loss", "b2:1", "--from-file", "-"),
            "--accept-loss needs a file, not stdin: the command that continues reads it again ",
        ),
    ],
)
def test_an_accepted_loss_names_bookies_and_ledgers(run_main: RunMain, options: tuple[str, ...], sentence: str) -> None:
    result = run_main("decommission", "b1:1", "b2:1", *options, "-u", NO_SERVER)
    assert (result.exit_code, sentence in result.stderr.replace("\n", " ")) == (2, True), result


def test_no_cluster_named(run_main: RunMain) -> None:
    result = run_main("bookie", "list")
    assert result.exit_code == 13
    assert result.stderr.startswith("error: no cluster specified: use --metadata-uri ")


@pytest.mark.parametrize("uri", ["localhost", "etcd://a/ledgers", "zk+foo://a/ledgers", "zk://a", "zk:///ledgers"])
def test_a_malformed_metadata_uri_is_named(run_main: RunMain, uri: str) -> None:
    result = run_main("bookie", "list", "-u", uri)
    assert result.exit_code == 13
    assert f"error: metadata URI '{uri}'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--timeout", "200ms", "-u", NO_SERVER, "bookie", "list"],
        ["bookie", "list", "--timeout", "200ms", "-u", NO_SERVER],
        ["-u", "zk://elsewhere/ledgers", "bookie", "list", "--timeout", "200ms", "-u", NO_SERVER],
    ],
)
def test_global_options_stand_on_either_side_and_no_server_is_code_6(run_main: RunMain, arguments: list[str]) -> None:
    result = run_main(*arguments)
    assert result.exit_code == 6
    assert result.stdout == ""
    assert "no ZooKeeper server responds at 127.0.0.1:1 (waited 0.2 s)" in result.stderr
    assert f"now {NO_SERVER} from --metadata-uri" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("decommission",), ("recover", "failed-bookie")])
@pytest.mark.parametrize("bookie_id", ["", ".", "..", "a/b", "readonly"])
def test_what_cannot_be_a_bookie_id_is_refused_before_anybody_is_asked(
    run_main: RunMain, command: tuple[str, ...], bookie_id: str
) -> None:
    result = run_main(*command, bookie_id, "--yes", "-u", NO_SERVER)
    assert result.exit_code == 2
    assert f"'{bookie_id}' is not a valid bookie id: use letters, digits" in result.stderr


@pytest.mark.parametrize("words", [("b1:3181",), ("b1:3181", "b2:3181"), ("--yes", "b1:3181"), ("--", "b1:3181")])
def test_any_other_word_after_recover_is_a_bookie_id(run_main: RunMain, words: tuple[str, ...]) -> None:
    server = ("-u", NO_SERVER, "--timeout", "100ms")
    short, full = run_main(*server, "recover", *words), run_main(*server, "recover", "failed-bookie", *words)
    assert (short.exit_code, short.stderr) == (full.exit_code, full.stderr)
    assert (short.exit_code, "no ZooKeeper server responds" in short.stderr) == (6, True)


def test_names_of_subcommands_of_recover_are_no_bookie_ids(run_main: RunMain) -> None:
    for words in (("recover", "failed-bookie"), ("recover", "failed-bookie", "--yes")):
        result = run_main(*words)
        assert (result.exit_code, "Missing argument 'ID...'" in result.stderr) == (2, True)
    no_id = run_main("recover", "a/b")
    assert (no_id.exit_code, "'a/b' is not a valid bookie id" in no_id.stderr) == (2, True)
    assert "No such option: --nope" in run_main("recover", "--nope").stderr
    for page in (run_main("recover", "--help"), run_main("recover", "failed-bookie", "--help")):
        assert "bkctl recover ID..." in " ".join(page.stdout.split())
    assert "bkctl recover failed-bookie ID..." in " ".join(run_main("recover", "--help").stdout.split())


def test_audit_without_subcommand_is_audit_run(run_main: RunMain) -> None:
    for words, sentence in {
        (): "no cluster specified",
        ("--cores", "2"): "--cores needs --spark",
        ("--out", "run", "--nope"): "No such option: --nope",
        ("--spark", "show"): "Got unexpected extra argument(s) (show) (see bkctl audit run --help)",
    }.items():
        short, full = run_main("audit", *words), run_main("audit", "run", *words)
        assert (short.exit_code, short.stderr) == (full.exit_code, full.stderr)
        assert sentence in short.stderr
    assert "No such command 'nope'" in run_main("audit", "nope").stderr
    assert "bkctl audit is short for bkctl audit run" in run_main("audit", "--help").stdout


def test_a_traceback_only_with_debug(run_main: RunMain) -> None:
    arguments = ("bookie", "list", "-u", "nonsense")
    assert "Traceback" not in run_main(*arguments).stderr
    for given in ((*arguments, "--debug"), ("--debug", *arguments)):
        result = run_main(*given)
        assert "Traceback" in result.stderr
        assert result.exit_code == 13
    assert "Traceback" in run_main(*arguments, BKCTL_LOG="debug").stderr


@pytest.mark.parametrize("flags", [(), ("--debug",)])
def test_logging_of_the_calling_process_is_as_it_was(run_main: RunMain, flags: tuple[str, ...]) -> None:
    loggers = [logging.getLogger(name) for name in ("", "asyncio", "bkctl.runtime.metadata.zookeeper.store")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    for command in (("bookie", "list"), ("bookie", "start")):  # a server logs, with or without --debug
        run_main(*command, "--timeout", "10ms", "-u", NO_SERVER, *flags)
        assert [(list(logger.handlers), logger.level) for logger in loggers] == before


def test_bookie_start_answers_with_the_table_of_servers(run_main: RunMain, tmp_path: Path) -> None:
    (tmp_path / "bk.conf").write_text("bookiePort=3181\n")
    result = run_main("bookie", "start", "--conf", "bk.conf")
    assert result.exit_code == 1
    assert "no cluster specified" in result.stderr
    assert run_main("bookie", "start", "--port", "99999").exit_code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bk.conf"]


def test_bookie_start_dry_run_shows_the_settings_and_starts_nothing(run_main: RunMain, tmp_path: Path) -> None:
    result = run_main("bookie", "start", "--port", "4000", "--set", "flushInterval=1000", "--dry-run")
    assert result.exit_code == 0
    assert result.json()["port"] == 4000
    assert result.json()["flush_interval_s"] == 1.0
    assert list(tmp_path.iterdir()) == []


def test_no_java_is_told_with_the_cure(run_main: RunMain, tmp_path: Path) -> None:
    for arguments, code in ((("bookie", "start"), 1), (("dev", "zookeeper"), 1), (("dev", "cluster", "up"), 13)):
        result = run_main(*arguments)
        assert result.exit_code == code
        assert "needs Java 17 or newer: install it (Debian, Ubuntu: apt install default-jre-headless)" in result.stderr
    assert not (tmp_path / "bkctl-data" / "cluster").exists()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_help_imports_nothing_heavy(is_terminal: bool) -> None:
    code = "import sys; from bkctl.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    master, slave = pty.openpty()
    stdout = slave if is_terminal else subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", code]
    finished = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=True)
    os.close(slave)
    os.close(master)
    modules = set(finished.stderr.split())
    heavy = {"asyncio", "kazoo", "uvloop", "plyvel", "pyspark", "pyarrow", "google", "rich", "yaml", "javaproperties"}
    assert modules & (heavy | {"bkctl.commands.ledger", "bkctl.commands.audit"}) == set()


@pytest.mark.parametrize("words", [["status"], ["audit"], ["bookie", "state"]], ids=" ".join)
def test_the_help_of_a_command_imports_nothing_that_only_its_run_needs(words: list[str]) -> None:
    arguments = [*words, "--help"]
    code = f"import sys; from bkctl.main import main; main({arguments}); print(*sys.modules, file=sys.stderr)"
    finished = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert set(finished.stderr.split()) & {"kazoo", "google", "aiohttp", "plyvel", "rich", "pyarrow"} == set()


def test_the_command_tree_says_of_every_command_what_the_command_says() -> None:
    said = {name.removeprefix("bkctl "): each.get_short_help_str() for name, each in leaves(build_app())}
    assert said == {path: leaf.summary for path, leaf in COMMANDS.items()}


def test_every_command_is_in_the_command_tree() -> None:
    written = {
        (module.name.removeprefix("bkctl.commands."), each.name)
        for module in pkgutil.walk_packages(bkctl.commands.__path__, "bkctl.commands.")
        for each in vars(importlib.import_module(module.name)).values()
        if isinstance(each, Command)
    }
    assert written == {(leaf.module, path.rpartition(" ")[2]) for path, leaf in COMMANDS.items()}


def test_the_help_page_says_of_every_group_what_the_group_says(run_main: RunMain) -> None:
    page = " ".join(run_main("--help", COLUMNS="120").stdout.partition("\nExample:")[0].split())
    for name in ("bookie", "cluster", "ledger", "recover", "decommission", "audit", "dev"):
        own_page = " ".join(run_main(name, "--help").stdout.split())
        summary = re.search(rf" {name} ([A-Z].*?\.)(?= [a-z]+ [A-Z]|$)", page)
        assert summary is not None
        assert summary[1] in own_page


def test_a_help_page_has_style_on_a_terminal_alone() -> None:
    code, page = run_bkctl_on_terminal("ledger", "--help", NO_COLOR="")
    assert code == 0
    assert "\x1b[1mCommands:\x1b[0m" in page
    assert "\x1b" not in run_bkctl("ledger", "--help", NO_COLOR="").stdout
    assert "\x1b" not in run_bkctl("ledger", NO_COLOR="").stderr


@pytest.mark.parametrize(
    "words", [("--help",), ("ledger", "list", "--help"), ("ledger",), ("ledger", "shw"), ("audit",)]
)
def test_color_is_obeyed_by_help_pages_and_errors(words: tuple[str, ...]) -> None:
    is_styled = {
        wanted: "\x1b[" in "".join(run_bkctl(*given, timeout_s=COMMAND_TIMEOUT_S, **variables)[1:])
        for wanted, given, variables in (
            ("always first", ("--color", "always", *words), {}),
            ("always last", (*words, "--color=always"), {}),
            ("always by variable", words, {"BKCTL_COLOR": "always"}),
            ("forced", words, {"NO_COLOR": "", "FORCE_COLOR": "1"}),
            ("no terminal", words, {"NO_COLOR": ""}),
            ("never", ("--color", "never", *words), {"NO_COLOR": "", "FORCE_COLOR": "1"}),
        )
    }
    if words == ("audit",):  # options alone are an audit
        del is_styled["always last"]
    assert is_styled == {wanted: wanted not in {"no terminal", "never"} for wanted in is_styled}
    for variables in ({"NO_COLOR": "1"}, {"NO_COLOR": "", "TERM": "dumb"}, {"NO_COLOR": "", "BKCTL_COLOR": "never"}):
        assert "\x1b[" not in run_bkctl_on_terminal(*words, **variables)[1], variables


def test_no_descriptors_for_an_event_loop_is_one_sentence() -> None:
    code = (
        "import resource, sys, uvloop; from bkctl.main import main; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)); "
        f"sys.exit(main(['bookie', 'list', '-u', '{NO_SERVER}']))"
    )
    command = [sys.executable, "-P", "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, env=bkctl_environment(), check=False)
    assert (finished.returncode, finished.stderr) == (
        1,
        "error: Too many open files: bkctl may have only 8 open, raise the limit (ulimit -n)\n",
    )


def test_a_reader_that_goes_away_is_no_crash() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = bkctl_command("bookie", "start", "--dry-run")
    process = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, env=bkctl_environment())
    os.close(write_end)
    _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (141, b"")


def test_a_full_disk_behind_stdout_is_named() -> None:
    command = bkctl_command("bookie", "start", "--dry-run")
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=bkctl_environment(), check=False)
    assert (finished.returncode, finished.stderr) == (2, b"error: stdout: No space left on device\n")


def test_a_full_disk_behind_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    command = bkctl_command(
        "storage", "files", "-o", "table", *(f"--{kind}-dir={tmp_path}" for kind in ("journal", "ledger"))
    )
    with open("/dev/full", "wb") as full:
        finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=bkctl_environment(), check=False)
    assert (finished.returncode, finished.stderr) == (1, b"error: stdout: No space left on device\n")


def test_unforeseen_errors_point_to_debug() -> None:
    sentence = describe(KeyError("x"), Settings())
    assert sentence == "internal error, KeyError: 'x' (run it again with --debug for the traceback)"


def test_errors_of_the_disk_name_the_file() -> None:
    assert describe(OSError(28, "No space left on device", "/data/x"), Settings()) == "/data/x: No space left on device"
    assert describe(ConfigurationError("as it is"), Settings()) == "as it is"
    assert describe(MetadataUnavailableError("gone"), Settings()) == "gone"


def test_connections_without_tls_do_not_pay_for_it() -> None:
    code = "import sys, bkctl.runtime.net.pool, bkctl.runtime.client; print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert {each.partition(".")[0] for each in finished.stdout.split()}.isdisjoint({"cryptography", "gssapi"})
