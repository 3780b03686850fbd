"""``bkctl tls init``: a certificate authority, and certificates of bookies and clients."""

from __future__ import annotations

import datetime
import glob
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import typer
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.runtime.errors import ConflictError
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.security.certificates import (
    NAME_LENGTH_MAX,
    Authority,
    CertificateRequest,
    alternative_names,
    certificate_pem,
    is_address,
    key_pem,
    new_authority,
    new_key,
    role_unit,
    sign,
)
from bkctl.runtime.security.roles import first_role
from bkctl.storage.adapters.given_files import read_given_file

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_IPV6: Final = re.compile(r"\[([0-9A-Fa-f.]*:[0-9A-Fa-f.:]+)\](?::\d{1,5})?")
_DAYS_MAX: Final = 3650
_DEFAULT_DAYS: Final = 365


@command(
    "init",
    example="tls init certificates --bookie b1:3181 --client operator --role admin",
    effect=Effect.REVERSIBLE,
    is_local=True,
)
async def init(
    context: CommandContext,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the files, new or old")],
    bookies: Annotated[
        list[str] | None,
        typer.Option("--bookie", metavar="HOST[:PORT]", help="Host of a bookie, or its ID; repeatable"),
    ] = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client, such as operator; repeatable")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="Role of these certificates (default: none)")
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=_DAYS_MAX, metavar="N", help="Days of validity")
    ] = _DEFAULT_DAYS,
) -> None:
    """Make a CA and certificates for the hosts of bookies and for clients, and print the settings that use them.

    Copy only bookies/HOST or clients/NAME to a machine; ca/key.pem signs certificates: keep it apart. A second run adds
    what is missing, and replaces no file. To renew a certificate, delete certificate.pem and run this again.
    """
    files = AuthorityFiles(directory)
    wanted = _wanted(files.directory, bookies or (), clients or (), role, days)

    async def examine() -> tuple[Plan, list[MissingFiles]]:
        is_new = files.missing_authority()
        missing = [found for each in wanted if (found := files.missing_of(each)).names]
        return _plan(files, missing, is_new=is_new), missing

    async def apply(_: object, missing: list[MissingFiles]) -> None:
        files.write(missing, datetime.datetime.now(datetime.UTC))

    await make_change(context, examine, apply)
    settings = [{"directory": each.directory, "toml": toml_lines(each), "java": java_lines(each)} for each in wanted]
    body = {"directory": files.directory, "ca_key": files.key_path, "role": role}
    context.console.record("TlsFiles", body, name="directory", details={"settings": settings})
    context.console.say(f"keep {files.key_path} apart from the machines of the cluster: only new certificates need it")
    if context.console.is_for_people and not context.settings.is_quiet:
        context.console.raw(_settings_text(wanted).encode())


def _wanted(
    directory: str, bookies: Sequence[str], clients: Sequence[str], role: str | None, days: int
) -> list[WantedCertificate]:
    if role is not None and not _is_name(role):
        raise InvalidArgumentError(f"--role {role}: use letters, digits, '.', '_' and '-'")
    hosts = dict.fromkeys(_host(each) for each in bookies)
    for name in clients:
        if not _is_name(name):
            raise InvalidArgumentError(f"--client {name}: use letters, digits, '.', '_' and '-'")
    if not hosts and not clients:
        raise InvalidArgumentError("no certificate to make: give --bookie HOST or --client NAME")
    wanted = [
        WantedCertificate(
            os.path.join(directory, "bookies", host), CertificateRequest(host, _names_of(host), role, days)
        )
        for host in hosts
    ]
    return wanted + [
        WantedCertificate(os.path.join(directory, "clients", name), CertificateRequest(name, (), role, days))
        for name in dict.fromkeys(clients)
    ]


def _is_name(text: str) -> bool:
    return len(text) <= NAME_LENGTH_MAX - len(role_unit("")) and _NAME.fullmatch(text) is not None


def _host(text: str) -> str:
    bracketed = _IPV6.fullmatch(text)
    parsed = None if is_address(text) else parse_host_and_port(text)
    host = bracketed[1] if bracketed else text if parsed is None else parsed[0]
    if not is_address(host) and not _NAME.fullmatch(host):
        raise InvalidArgumentError(
            f"--bookie {text}: give a host name or an address, with or without :PORT (for IPv6: [ADDRESS]:PORT)"
        )
    return host.lower()


def _names_of(host: str) -> tuple[str, ...]:
    """The host, and its addresses if it has some now: a client may connect to either."""
    if is_address(host):
        return (host,)
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return (host,)
    return (host, *sorted(found))


def _plan(files: AuthorityFiles, missing: Sequence[MissingFiles], *, is_new: bool) -> Plan:
    items: list[dict[str, Any]] = []
    if is_new and missing:
        items.append({"action": "create", "path": files.key_path, "expected_version": None, "what": "authority"})
    for each in missing:
        request = each.wanted.request
        items.append(
            {
                "action": "create",
                "path": each.wanted.directory,
                "expected_version": None,
                "files": list(each.names),
                "names": list(request.hosts),
                "role": request.role,
                "days": request.days,
            }
        )
    plan = Plan(root="", instance_id=None, subject=files.directory, items=items)
    if not items:
        return plan.emptied(f"everything is in {files.directory} already")
    what = "a certificate authority and " if is_new else ""
    sentence = f"will make {what}files in {', '.join(each.wanted.directory for each in missing)}"
    return msgspec.structs.replace(plan, summary=(sentence,))


def _settings_text(wanted: Sequence[WantedCertificate]) -> str:
    """The settings of one bookie and of one client: those of the others differ only in the directory."""
    firsts = {bool(each.request.hosts): each for each in reversed(wanted)}
    parts = []
    for each in (firsts[is_bookie] for is_bookie in (True, False) if is_bookie in firsts):
        who = f"{'bookie on' if each.request.hosts else 'client'} {each.request.name}"
        file = "bk_server.conf" if each.request.hosts else "its configuration"
        parts.append(f"\n# bkctl, {who}: TOML file\n{toml_lines(each)}")
        parts.append(f"\n# Java, {who}: {file}\n{java_lines(each)}")
    return "".join(parts)


_OF_JAVA: Final = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsClientAuthentication": "true",
    "tlsHostnameVerificationEnabled": "true",
    "tlsCertFilesRefreshDurationSeconds": "60",
    "tlsKeyStoreType": "PEM",
    "tlsTrustStoreType": "PEM",
}
_ROLE_PLUGIN: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"


def toml_lines(wanted: WantedCertificate) -> str:
    """Tables of the TOML file for a bookie, which connects to other bookies too, or for a client."""
    files = _files(wanted)
    tables = {"bookie_client.tls": _toml(files)}
    if wanted.request.hosts:
        own = {**_toml(files), "is_client_certificate_required": "true"}
        if wanted.request.role is not None:
            own["authorized_roles"] = f"[{_quoted(wanted.request.role)}]"
        tables = {"bookie.tls": own, **tables}
    return "\n".join(f"[{name}]\n{_pairs(values, ' = ')}" for name, values in tables.items())


def java_lines(wanted: WantedCertificate) -> str:
    """Lines of bk_server.conf for a Java bookie, or of a Java client's configuration."""
    key, certificate, authority = _files(wanted)
    values = {**_OF_JAVA, "tlsKeyStore": key, "tlsCertificatePath": certificate, "tlsTrustStore": authority}
    if wanted.request.hosts and wanted.request.role is not None:
        values |= {"bookieAuthProviderFactoryClass": _ROLE_PLUGIN, "authorizedRoles": wanted.request.role}
    return _pairs(values, "=")


def _files(wanted: WantedCertificate) -> tuple[str, str, str]:
    key, certificate, authority = (os.path.join(wanted.directory, name) for name in (KEY, CERTIFICATE, CA))
    return key, certificate, authority


def _toml(files: tuple[str, str, str]) -> dict[str, str]:
    names = ("key_file", "certificate_file", "ca_file")
    return {name: _quoted(path) for name, path in zip(names, files, strict=True)}


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()  # a TOML string, too


def _pairs(values: Mapping[str, str], between: str) -> str:
    return "".join(f"{name}{between}{value}\n" for name, value in values.items())


KEY: Final = "key.pem"
CERTIFICATE: Final = "certificate.pem"
CA: Final = "ca.pem"
AUTHORITY_DAYS: Final = 3650
_AUTHORITY_NAME: Final = "bkctl certificate authority"
_PRIVATE: Final = 0o700


class WantedCertificate(NamedTuple):
    """A certificate that is to be in ``directory``."""

    directory: str
    request: CertificateRequest


class MissingFiles(NamedTuple):
    """What a directory lacks."""

    wanted: WantedCertificate
    names: tuple[str, ...]


class AuthorityFiles:
    """The files below one directory."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)
        self.key_path = os.path.join(self.directory, "ca", KEY)
        self.certificate_path = os.path.join(self.directory, "ca", CA)

    def missing_authority(self) -> bool:
        """Whether there is no authority yet; ConflictError if a file of the one that signed is missing."""
        paths = (self.key_path, self.certificate_path)
        lost = [path for path in paths if not os.path.lexists(path)]
        is_none = len(lost) == len(paths)
        below = (f"{glob.escape(self.directory)}/{kind}/*/*.pem" for kind in ("bookies", "clients"))
        signed = [path for pattern in below for path in glob.glob(pattern)] if is_none else []
        if (lost and not is_none) or signed:
            whose = f", whose CA signed what is in {os.path.dirname(min(signed))}" if signed else ""
            which = f"{' and '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing{whose}"
            it = "it" if len(lost) == 1 else "them"
            raise ConflictError(f"nothing was changed: {which}: restore {it}, or give another directory")
        return is_none

    def missing_of(self, wanted: WantedCertificate) -> MissingFiles:
        """Files to write; ConflictError if what is there is for another name, host or role, or has lost its key."""
        names = [name for name in (KEY, CERTIFICATE, CA) if not os.path.lexists(os.path.join(wanted.directory, name))]
        path = os.path.join(wanted.directory, CERTIFICATE)
        if CERTIFICATE not in names:
            if KEY in names:
                raise ConflictError(f"nothing was changed: {path} has lost its {KEY}: delete it to make both again")
            _require_same(path, read_certificate(path), wanted.request)
        return MissingFiles(wanted, tuple(names))

    def write(self, missing: Sequence[MissingFiles], now: datetime.datetime) -> None:
        """Write what is missing, keys first; OSError, ConflictError if a file has appeared meanwhile."""
        authority = self._authority(now)
        trusted = certificate_pem(authority.certificate)
        for each in missing:
            directory = each.wanted.directory
            _make_private(directory)
            key = new_key() if KEY in each.names else read_key(os.path.join(directory, KEY))
            contents = {KEY: key_pem(key), CA: trusted}
            if CERTIFICATE in each.names:
                contents[CERTIFICATE] = certificate_pem(sign(authority, each.wanted.request, key, now))
            for name in each.names:
                write_whole(os.path.join(directory, name), contents[name], is_new=True)

    def _authority(self, now: datetime.datetime) -> Authority:
        if not self.missing_authority():
            return Authority(read_certificate(self.certificate_path), read_key(self.key_path))
        _make_private(os.path.dirname(self.key_path))
        made = new_authority(_AUTHORITY_NAME, AUTHORITY_DAYS, now)
        write_whole(self.key_path, key_pem(made.key), is_new=True)
        write_whole(self.certificate_path, certificate_pem(made.certificate), is_new=True)
        return made


def read_certificate(path: str) -> x509.Certificate:
    """The first certificate of a PEM file; OSError, InvalidArgumentError."""
    try:
        return x509.load_pem_x509_certificate(read_given_file(path))
    except ValueError as error:
        raise InvalidArgumentError(f"{path} has no certificate in PEM form") from error


def read_key(path: str) -> ec.EllipticCurvePrivateKey:
    """The private key of a PEM file that ``tls init`` has written; OSError, InvalidArgumentError."""
    try:
        key = serialization.load_pem_private_key(read_given_file(path), None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"{path} has no private key without a password in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgumentError(f"{path} is not a key of bkctl tls init, which are elliptic")
    return key


def _require_same(path: str, found: x509.Certificate, request: CertificateRequest) -> None:
    """Expiry is no difference: ``tls check`` reports it, and a deleted certificate is made again."""
    role = first_role(found.public_bytes(serialization.Encoding.DER))
    differences = []
    if role != request.role:
        differences.append(f"role {role or 'none'}, not {request.role or 'none'}")
    if request.hosts and request.name not in alternative_names(found):  # its addresses may have changed
        differences.append(f"no name {request.name}")
    if differences:
        raise ConflictError(
            f"nothing was changed: {path} has {' and '.join(differences)}: delete it to sign another one for its key"
        )


def _make_private(directory: str) -> None:
    for path in reversed([directory, *_parents(directory)]):
        if not os.path.isdir(path):
            os.mkdir(path, _PRIVATE)


def _parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) not in {path, ""}:
        yield parent
        path = parent
