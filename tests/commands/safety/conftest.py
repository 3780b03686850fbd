"""A command's context with settings of the test's choice; what it tells is kept."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bkctl.commands.config import OutputForm, Settings
from bkctl.commands.console import Console
from bkctl.commands.context import BookieFlags, BookieSettings, CommandContext, Effect


class WrittenContext:
    """A context, its state directory, and what was written."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.out = io.StringIO()
        self.err = io.StringIO()
        values = {"state_directory": str(directory), "output": OutputForm.JSON, **settings}
        self.settings = Settings(**values)
        console = Console(self.settings, {}, self.out, self.err, io.StringIO())
        self.context = CommandContext(self.settings, console, _no_bookie)
        self.context.command, self.context.effects = "cookie delete", tuple(Effect)


def _no_bookie(flags: BookieFlags) -> BookieSettings:
    raise AssertionError("no bookie is started here")


@pytest.fixture
def make_context(tmp_path: Path) -> Callable[..., WrittenContext]:
    """``make_context(is_dry_run=True)``; all contexts of a test share a state directory."""
    return lambda **settings: WrittenContext(tmp_path / "state", **settings)
