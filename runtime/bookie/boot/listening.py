"""The bookie's port as the settings want it, and what must be right before it opens."""

from __future__ import annotations

import logging
from typing import Final

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.net.bookie_security import BookieSecurity
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.ports import Clock, Host

logger = logging.getLogger(__name__)

_DAY_S: Final = 24 * 3600
_EXPIRY_WARNING_S: Final = 14 * _DAY_S
_CHECK_INTERVAL_S: Final = 3600.0
_WARNING_INTERVAL_S: Final = _DAY_S


def require_startup_user(config: BookieConfig, host: Host) -> None:
    """ConfigurationError if the user of this process may not start the bookie."""
    permitted = config.permitted_startup_users
    if permitted and (user := host.user()) not in permitted:
        setting = config.permitted_startup_users_java_key or "permitted_startup_users"
        raise ConfigurationError(f"user {user} may not start this bookie: {setting} has {', '.join(permitted)}")


def new_listener(config: BookieConfig, clock: Clock) -> BookieListener:
    """A listener that is not open yet. ConfigurationError for files of TLS and logins that cannot be used."""
    limits = ListenerLimits(
        frame_bytes_max=config.frame_bytes_max,
        connections_max=config.connections_max,
        memory_bytes_max=config.connection_memory_bytes_max,
        stall_s_max=config.connection_stall_s_max,
    )
    return BookieListener(limits, clock.monotonic_ns, BookieSecurity.of(config))


async def watch_certificate(listener: BookieListener, clock: Clock) -> None:
    """Warn once a day that the bookie's certificate expires soon; until cancelled. Follows the file."""
    contexts = None if listener.security is None else listener.security.contexts
    warned_s = float("-inf")
    while contexts is not None and (expires_s := contexts.expires_at()) is not None:
        now_s = clock.now_ms() / 1000
        left_s = expires_s - now_s
        if left_s < _EXPIRY_WARNING_S and now_s - warned_s >= _WARNING_INTERVAL_S:
            warned_s = now_s
            logger.warning("The bookie's certificate %s; replace its file (tls.certificate_file)", expiry_words(left_s))
        await clock.sleep(_CHECK_INTERVAL_S)


def expiry_words(left_s: float) -> str:
    """When a certificate expires in so many seconds."""
    if left_s <= 0:
        return "has expired, and clients refuse it"
    return f"expires in {left_s / _DAY_S:.1f} days"
