"""A real ssh server on loopback, as the machine of a name: with keys of its own, a folder of runs of its own, and a
client configuration in which the name leads there."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
from waiting import free_port, wait_until

SERVER = shutil.which("sshd") or "/usr/sbin/sshd"
PROGRAM = str(Path(sys.executable).parent / "trainvitals")


class SshWorld:
    """The client's side: its key, its configuration, and an `ssh` on the PATH that reads that instead of the user's."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bin = place / "bin"
        self.bin.mkdir(parents=True)
        self.key = place / "key"
        _make_key(self.key)
        self.config = place / "config"
        self.config.write_text("")
        ssh = self.bin / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.config} "$@"\n')
        ssh.chmod(0o755)
        self.servers: list[Sshd] = []

    @property
    def path(self) -> str:
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    def add(self, name: str, environment: Mapping[str, str], *lines: str, known: bool = True) -> Sshd:
        """Start the server of a machine; `lines` are of its configuration."""
        server = Sshd(self, name, environment, lines)
        checking = "accept-new" if known else "yes"
        self.config.write_text(
            f"{self.config.read_text()}Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n"
            f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.place}/known_{name}\n"
            f"  StrictHostKeyChecking {checking}\n"
        )
        self.servers.append(server)
        return server

    def end(self) -> None:
        for server in self.servers:
            server.end()


class Sshd:
    """The server of one machine."""

    def __init__(self, world: SshWorld, name: str, environment: Mapping[str, str], lines: tuple[str, ...]) -> None:
        folder = world.place / f"server-{name}"
        folder.mkdir()
        _make_key(folder / "host_key")
        (folder / "authorized").write_text((world.key.with_suffix(".pub")).read_text())
        self.port = free_port()
        # An empty home: what the shell of the person who runs the tests does at its start is not waited for.
        environment = {"HOME": str(folder), **environment}
        # The first of two lines of one name counts.
        config = [
            *lines,
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {folder}/host_key",
            f"AuthorizedKeysFile {folder}/authorized",
            f"PidFile {folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            f"SetEnv {' '.join(f'{key}={value}' for key, value in environment.items())}",
        ]
        (folder / "config").write_text("\n".join(config) + "\n")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self._words = [SERVER, "-D", "-e", "-f", str(folder / "config")]
        self._log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(self._words, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(self._is_up, "the ssh server")

    def _is_up(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self._log.read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), 5.0).close()
        except OSError:
            return False
        return True

    def everything(self) -> list[psutil.Process]:
        """The server and what it started."""
        assert self.process is not None
        try:
            server = psutil.Process(self.process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def readers(self) -> list[psutil.Process]:
        """The far sides."""
        found = []
        for process in self.everything():
            try:
                if "reader" in process.cmdline() and "python" in process.name().lower() + process.cmdline()[0]:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def signal(self, number: int) -> None:
        """To all of it: SIGSTOP is a machine that hangs, SIGKILL one that is switched off."""
        for process in self.everything():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def end(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process = None


def _make_key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
