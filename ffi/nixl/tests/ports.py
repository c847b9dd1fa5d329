"""Ports for listeners that have to be told theirs."""

import random
import socket


def free_port() -> int:
    """Below those that the kernel gives to whoever asks for any: another one is not given it before it is used."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("", port))
            except OSError:
                continue
            return port
