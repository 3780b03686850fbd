"""The file of ``bkctl audit --checked-file``: when the ledgers of a cluster were examined by inventories."""

from __future__ import annotations

import os
from contextlib import suppress

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import read_named_file
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.new_file import whole_file, write_whole
from bkctl.runtime.replication.cluster_audit.checked_ledgers import (
    CheckedLedgers,
    CheckedLedgersFormatError,
    decode_checked,
    encode_checked,
)
from bkctl.runtime.replication.cluster_audit.inventory import InventoryWay
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX
from bkctl.storage.errors import BkctlError

_OPTIONS = {
    InventoryWay.LISTED: "--inventory alone",
    InventoryWay.SAMPLED: "--inventory --read",
    InventoryWay.ALL_ENTRIES: "--inventory --read --all-entries",
}


def read_checked(path: str, root: str, instance_id: str | None, way: InventoryWay) -> CheckedLedgers:
    """What is in the file; nothing if it does not exist yet. InvalidArgumentError if it is damaged, or no such file;
    ConflictError if it is of another cluster, or of inventories that prove more or less."""
    if not os.path.exists(path):
        directory = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(directory):
            raise InvalidArgumentError(f"--checked-file {path}: there is no directory {directory}")
        return CheckedLedgers(root=root, instance_id=instance_id, way=way.value)
    if not os.path.isfile(path):
        raise InvalidArgumentError(f"--checked-file {path} is not a regular file: name another one")
    try:
        found = decode_checked(read_named_file(path, bytes_max=DATA_BYTES_MAX))
    except CheckedLedgersFormatError as error:
        raise InvalidArgumentError(
            f"--checked-file {path}: {error}; name another file: it will begin with all ledgers"
        ) from error
    if (found.root, found.instance_id) != (root, instance_id):
        raise ConflictError(
            f"--checked-file {path} is of another cluster ({found.root}, instance {found.instance_id}): use a file for "
            "each cluster"
        )
    if found.way != way.value:
        ways = {each.value: options for each, options in _OPTIONS.items()}
        raise ConflictError(
            f"--checked-file {path} is of inventories with {ways.get(found.way, found.way)}, not with {_OPTIONS[way]}: "
            "use another file"
        )
    return found


class _NotReplaced(Exception):  # noqa: N818  it is not a failure
    """Ends an attempt to write before the file is replaced."""


def require_writable(path: str, checked: CheckedLedgers) -> None:
    """InvalidArgumentError unless the file could be replaced now. It stays as it is, also if it does not exist."""
    try:
        with suppress(_NotReplaced), whole_file(path) as write:
            write(encode_checked(checked))
            raise _NotReplaced
    except OSError as error:
        raise InvalidArgumentError(f"{_not_written(path, error)}: choose another place") from error


def write_checked(path: str, checked: CheckedLedgers) -> None:
    """Replace the file, all or nothing; BkctlError."""
    try:
        write_whole(path, encode_checked(checked))
    except OSError as error:
        raise BkctlError(_not_written(path, error)) from error


def _not_written(path: str, error: OSError) -> str:
    return f"--checked-file {path} cannot be written: {error.strerror}"
