"""The small types of `mooncake.engine`."""

from __future__ import annotations

from enum import IntEnum


class TransferOpcode(IntEnum):
    """Which way bytes go."""

    Read = 0
    Write = 1


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """What a peer is told once the bytes of a transfer are there."""

    name: str
    msg: str

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


_MARK = b"mooncake\0"


def notification_of(notify: TransferNotify) -> bytes:
    """As it goes to the peer."""
    name = notify.name.encode()
    return _MARK + len(name).to_bytes(4, "little") + name + notify.msg.encode()


def notify_of(data: bytes) -> TransferNotify | None:
    """What a peer has sent; `None`: it was not sent as one of these."""
    if not data.startswith(_MARK):
        return None
    rest = data[len(_MARK) :]
    end = 4 + int.from_bytes(rest[:4], "little")
    return TransferNotify(rest[4:end].decode(errors="replace"), rest[end:].decode(errors="replace"))
