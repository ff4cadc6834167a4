"""Ports that no two tests share."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ports import reserved_port


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_can_listen_on_a_reserved_port(host: str) -> None:
    port = reserved_port(host)
    with socket.socket() as server:
        server.bind((host, port))
        server.listen()
        assert reserved_port(host) != port


PROGRAM = """
import os, sys
os.getpid = lambda: int(sys.argv[1])
from ports import reserved_port
print([reserved_port("127.0.0.1") for _ in range(20)])
"""


def test_no_process_gets_the_port_of_another() -> None:
    """Also one that looks in the same order."""
    mine = {reserved_port("127.0.0.1") for _ in range(20)}
    command = [sys.executable, "-c", PROGRAM, str(os.getpid())]
    printed = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    others = set(map(int, printed.strip("[]\n").split(",")))
    assert len(mine) == len(others) == 20
    assert not mine & others
