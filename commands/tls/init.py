"""``bkctl tls init``: a certificate authority, and certificates of bookies and clients."""

from __future__ import annotations

import datetime
import os
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.safety.gate import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.tls.authority_files import CA, CERTIFICATE, KEY, AuthorityFiles, MissingFiles, WantedCertificate
from bkctl.runtime.ledger.metadata import parse_host_and_port
from bkctl.runtime.security.certificates import NAME_LENGTH_MAX, CertificateRequest, is_address, role_unit

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
