"""Options of the command line that set a setting: spelling, help and range are those of its description."""

from __future__ import annotations

from typing import Any

import msgspec
import typer

from storage.setting import described


def setting_option(struct: type[msgspec.Struct], name: str, metavar: str | None = None) -> Any:
    """The option for the field ``name``, for an annotation. It has no default, so that other sources count."""
    each = next(each for each in described(struct) if each.path[-1] == name)
    setting = each.setting
    assert setting.flag is not None, name
    low, high = (setting.low, setting.high) if each.type is int else (None, None)
    repeated = "; may be repeated" if each.type == tuple[str, ...] else ""
    return typer.Option(setting.flag, metavar=metavar, help=f"{setting.help}{repeated}", min=low, max=high)
