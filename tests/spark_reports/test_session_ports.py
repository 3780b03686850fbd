"""Ports of a Spark session on this machine: a process of another user gets nothing from them."""

from __future__ import annotations

import socket
import struct

from pyspark.sql import SparkSession

_RPC_REQUEST, _RPC_FAILURE = 3, 5
"""Types of messages of Spark: a length of 8 bytes that counts itself, the type, the number of the request."""
_OPEN_BLOCKS = 0


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _answer_to(port: int, body: bytes) -> int | None:
    """Type of the answer to a request without any authentication; None if the connection was closed."""
    message = struct.pack(">bqi", _RPC_REQUEST, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        answer = bytearray()
        while len(answer) < 9:
            part = connection.recv(9 - len(answer))
            if not part:
                return None
            answer += part
    return answer[8]


def test_blocks_need_the_secret_of_the_session(spark: SparkSession) -> None:
    context = spark.sparkContext
    host_and_port = context._jsc.sc().getExecutorMemoryStatus().keys().head()
    port = int(host_and_port.rpartition(":")[2])
    request = bytes([_OPEN_BLOCKS]) + _text(context.applicationId) + _text("driver") + struct.pack(">i", 0)
    assert _answer_to(port, request) in {_RPC_FAILURE, None}
    assert spark.range(1000).repartition(3).count() == 1000  # the session itself knows it
