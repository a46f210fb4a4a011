"""The client half of the MySQL client/server protocol, over a unix socket, as far as needed here.

Format: "MySQL Client/Server Protocol" of the MySQL source documentation (HandshakeV10,
HandshakeResponse41, AuthSwitchRequest, COM_QUERY with a text result set), which MariaDB shares.
Accounts have no password, TLS is not used, a packet holds less than 16 MiB. It spares a host the
client program, and the trial a process for each question.
"""

from __future__ import annotations

import socket
import struct
from typing import Dict, List, Optional, Tuple

from ..instance import Refused

Row = Tuple[Optional[str], ...]

# CLIENT_LONG_PASSWORD, CLIENT_PROTOCOL_41, CLIENT_TRANSACTIONS, CLIENT_SECURE_CONNECTION,
# CLIENT_PLUGIN_AUTH
_CAPABILITIES = 0x1 | 0x200 | 0x2000 | 0x8000 | 0x80000
_UTF8MB4 = 45
_COM_QUERY, _COM_QUIT = b"\x03", b"\x01"


class QueryRefused(Refused):
    """The server's own words: ``code`` is its error number (0: the connection was lost)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (error {code})" if code else text)
        self.code = code


class Connection:
    """A session of root's, without a password. Raises QueryRefused, and OSError as sockets do."""

    def __init__(self, path: str, timeout_s: Optional[float] = None) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._number = 0
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(path)
            self._greet()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        try:
            self._number = 0
            self._send(_COM_QUIT)
        except OSError:
            pass
        self._socket.close()

    def query(self, statement: str) -> List[Row]:
        """Run one statement; return its rows, every value as text (NULL as None), or []."""
        self._number = 0
        self._send(_COM_QUERY + statement.encode("utf-8"))
        head = self._receive()
        if head[0] == 0x00:
            return []
        if head[0] == 0xFB:
            raise QueryRefused(0, "the server asked for a local file")
        columns, _ = _length(head, 0)
        for _ in range(columns):
            self._receive()
        self._receive()  # the end of the columns
        rows: List[Row] = []
        while True:
            packet = self._receive()
            if packet[0] == 0xFE and len(packet) < 9:
                return rows
            rows.append(_row(packet, columns))

    def pairs(self, statement: str) -> Dict[str, str]:
        """Run a statement whose rows are a name and a value, like SHOW STATUS."""
        return {str(row[0]): row[1] or "" for row in self.query(statement)}

    def _greet(self) -> None:
        greeting = self._receive()
        if greeting[0] != 10:
            raise QueryRefused(0, f"the server speaks protocol {greeting[0]}, not 10")
        self.version = greeting[1 : greeting.index(0, 1)].decode("utf-8", errors="replace")
        # After the version: thread 4, challenge 8, 0, capabilities 2, character set 1, status 2,
        # capabilities 2, length of the challenge 1, reserved 10, the rest of it, the plugin's name.
        rest = greeting[len(self.version.encode()) + 2 :]
        plugin = rest[31 + max(13, rest[20] - 8) :].rstrip(b"\0")
        self._send(
            struct.pack("<IIB23x", _CAPABILITIES, 1 << 24, _UTF8MB4)
            + b"root"
            + b"\0\0"  # the end of the name; an empty answer to the challenge
            + plugin
            + b"\0"
        )
        while True:
            packet = self._receive()
            if packet[0] == 0x00:
                return
            if packet[0] == 0xFE:  # another method: without a password its answer is empty too
                self._send(b"")

    def _send(self, payload: bytes) -> None:
        self._socket.sendall(
            struct.pack("<I", len(payload))[:3] + bytes([self._number & 0xFF]) + payload
        )
        self._number += 1

    def _receive(self) -> bytes:
        head = self._exactly(4)
        self._number = head[3] + 1
        payload = self._exactly(int.from_bytes(head[:3], "little"))
        if payload[:1] == b"\xff":
            code = int.from_bytes(payload[1:3], "little")
            text = payload[9:] if payload[3:4] == b"#" else payload[3:]
            raise QueryRefused(code, text.decode("utf-8", errors="replace"))
        if not payload:
            raise QueryRefused(0, "the server sent an empty packet")
        return payload

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise QueryRefused(0, "the server closed the connection")
            data += piece
        return data


def _length(packet: bytes, at: int) -> Tuple[int, int]:
    """Return a length-encoded integer and where it ends."""
    first = packet[at]
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(packet[at + 1 : at + 1 + size], "little"), at + 1 + size


def _row(packet: bytes, columns: int) -> Row:
    values: List[Optional[str]] = []
    at = 0
    for _ in range(columns):
        if packet[at] == 0xFB:
            values.append(None)
            at += 1
            continue
        size, at = _length(packet, at)
        values.append(packet[at : at + size].decode("utf-8", errors="replace"))
        at += size
    return tuple(values)
