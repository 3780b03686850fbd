"""Files of bad copies that ``recover ledger --from-file`` reads. ``ledger verify --out`` and
``audit --inventory --out`` write them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.parse import read_named_file
from bkctl.commands.rendering import envelope, to_json_line
from bkctl.runtime.new_file import whole_file
from bkctl.runtime.replication.judge.findings import (
    END_KIND,
    KIND,
    CopyFinding,
    FindingsFormatError,
    FindingsHeader,
    decode_findings,
    encode_finding,
    encode_header,
)
from bkctl.storage.adapters.given_files import DATA_BYTES_MAX


@contextmanager
def new_findings_file(
    path: str, root: str, instance_id: str | None
) -> Iterator[Callable[[Iterable[CopyFinding]], None]]:
    """Writes the bad copies that the caller passes; the file appears when the block ends without error.

    ConflictError if it exists; OSError.
    """
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    count = 0
    with whole_file(path, is_new=True) as write_bytes:

        def write(line: dict[str, object]) -> None:
            write_bytes(to_json_line(line).encode() + b"\n")

        def note(findings: Iterable[CopyFinding]) -> None:
            nonlocal count
            for finding in findings:
                write(encode_finding(finding))
                count += 1

        write(envelope(KIND, encode_header(FindingsHeader(root=root, instance_id=instance_id, created=created))))
        yield note
        write({"kind": END_KIND, "findings": count})


def read_findings(path: str, root: str, instance_id: str | None) -> tuple[CopyFinding, ...]:
    """The bad copies in a file; NotFoundError, InvalidArgumentError for an invalid file or one of another cluster."""
    try:
        header, findings = decode_findings(read_named_file(path, "the findings", DATA_BYTES_MAX).splitlines())
    except FindingsFormatError as error:
        raise InvalidArgumentError(f"{path} is not a file of findings: {error}") from error
    if (header.root, header.instance_id) != (root, instance_id):
        raise InvalidArgumentError(
            f"{path} is about another cluster ({header.root}, instance {header.instance_id}): verify this one"
        )
    return findings
