"""What a shell may complete a bkctl command line with; the scripts of ``bkctl completion`` ask for it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

from bkctl.commands.audit.findings import FINDING_KINDS, INVENTORY_KINDS, SEVERITY_KINDS
from bkctl.commands.audit.tables import sort_fields
from bkctl.commands.config import GlobalFlags
from bkctl.commands.help_page import HelpGroup
from bkctl.manual import page_names
from bkctl.setting_readers import all_settings
from bkctl.settings import read_sources

_CLUSTER_OPTIONS = frozenset({"metadata_uri", "cluster", "conf", "config"})
_WAIT = "1s"


def completions(root: Any, invocation: Any, words: Sequence[str]) -> list[str]:
    """Words that begin with the last of ``words`` and can be there; bookie ids wait for ZooKeeper a second at most.

    Empty where bkctl knows none or fails: the shell then offers files. ``invocation`` is the Typer context object.
    """
    try:
        return _completions(root, invocation, words)
    except Exception:
        return []  # a message would be printed into the line that the user types


def _completions(root: Any, invocation: Any, words: Sequence[str]) -> list[str]:
    *given, start = words or [""]
    command, name, cluster, expected, is_after_options = root, "", [], None, False
    for word in given:
        option = None if is_after_options or expected is not None else _option(root, command, word.partition("=")[0])
        is_after_options = is_after_options or word == "--"
        if expected is not None:
            cluster += [expected.opts[0], word] if expected.name in _CLUSTER_OPTIONS else []
            expected = None
        elif option is not None:
            expected = None if option.is_flag or "=" in word else option
            cluster += word.split("=", 1) if "=" in word and option.name in _CLUSTER_OPTIONS else []
        elif isinstance(command, HelpGroup) and not word.startswith("-"):
            command, name = _member(command, name, word)
    if expected is None and start.startswith("-") and "=" in start and not is_after_options:
        prefix, _, start = start.partition("=")
        expected = _option(root, command, prefix)
        found = _values(root, invocation, expected, name, cluster)
        return sorted(f"{prefix}={each}" for each in found if each.startswith(start))
    if expected is not None:
        found = _values(root, invocation, expected, name, cluster)
    elif start.startswith("-") and not is_after_options:
        found = iter([*_spellings(command), "--help"])
    elif given == ["help"]:
        found = iter([*root.commands, *page_names()])
    else:
        found = _arguments(root, invocation, command, name, cluster)
    if (getattr(expected, "metavar", None) or "").endswith(",..."):
        before = start[: start.rfind(",") + 1]
        found = (before + each for each in found)
    return sorted({each for each in found if each.startswith(start)})


def _member(command: Any, name: str, word: str) -> tuple[Any, str]:
    """The command that a word leads to; the word may be the first argument of a command whose name is left out."""
    if word in command.commands:
        return command.commands[word], f"{name} {word}".lstrip()
    default = getattr(command, "default", None)
    return (command, name) if default is None else (command.commands[default], f"{name} {default}")


def _option(root: Any, command: Any, spelling: str) -> Any:
    candidates = [*command.params, *root.params]
    if isinstance(command, HelpGroup) and (default := getattr(command, "default", None)):
        candidates += command.commands[default].params
    return next((each for each in candidates if spelling.startswith("-") and spelling in each.opts), None)


def _spellings(command: Any) -> Iterator[str]:
    default = getattr(command, "default", None)
    for owner in [command] if default is None else [command, command.commands[default]]:
        for each in owner.params:
            if each.param_type_name == "option" and not each.hidden:
                yield from (spelling for spelling in each.opts if spelling.startswith("--"))


def _arguments(root: Any, invocation: Any, command: Any, name: str, cluster: Sequence[str]) -> Iterator[str]:
    if isinstance(command, HelpGroup):
        yield from command.commands
        command = command.commands[default] if (default := getattr(command, "default", None)) else command
    for each in command.params:
        if each.param_type_name == "argument":
            yield from _values(root, invocation, each, name, cluster)


def _values(root: Any, invocation: Any, parameter: Any, name: str, cluster: Sequence[str]) -> Iterator[str]:
    """What is known about the values of an option or argument of the command ``name``."""
    metavar = (parameter.metavar or "").strip("[].").removesuffix("...") if parameter is not None else ""
    if choices := getattr(parameter and parameter.type, "choices", ()):
        yield from (str(getattr(each, "value", each)) for each in choices)
    elif parameter is not None and (parameter.name == "cluster" or name == "config use-context"):
        yield from _contexts(cluster)
    elif parameter is not None and parameter.name == "fail_on":
        yield from (*SEVERITY_KINDS, *FINDING_KINDS, *INVENTORY_KINDS)
    elif parameter is not None and parameter.name == "sort" and name in {"audit", "audit run"}:
        yield from sort_fields()
    elif metavar == "ID":
        yield from _bookie_ids(root, invocation, cluster)
    elif (name, metavar) == ("config explain", "KEY"):
        yield from (each.name for each in all_settings() if each.is_in_toml)
        yield from (each.java_key for each in all_settings() if each.java_key is not None)


def _contexts(cluster: Sequence[str]) -> list[str]:
    config = dict(zip(cluster[::2], cluster[1::2], strict=False)).get("--config")
    return list(read_sources(GlobalFlags(config=config), os.environ).toml.contexts)


def _bookie_ids(root: Any, invocation: Any, cluster: Sequence[str]) -> list[str]:
    """Ids of the cluster's bookies; none if the cluster is unknown or does not answer."""
    words = ["--timeout", _WAIT, *cluster, "bookie", "list", "-o", "name"]
    out = io.StringIO()
    with contextlib.suppress(Exception), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        root.main(words, prog_name="bkctl", standalone_mode=False, obj=invocation)
    return out.getvalue().split()
