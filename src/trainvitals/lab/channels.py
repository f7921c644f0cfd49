"""How a question gets to another machine and its answer back: through the user's own ssh, to a server, or not at all,
because the machine is this one. A channel that failed is closed for good; `Machine` opens another."""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO, Any, Protocol

from trainvitals import http_client
from trainvitals.errors import JournalError, MachineError, RunNotFound
from trainvitals.journal.documents.fields import is_mapping, text, whole
from trainvitals.lab import far, messages
from trainvitals.lab.messages import Message, MessageError
from trainvitals.lab.places import Place
from trainvitals.safe_text import one_line

CONNECT_SECONDS = 30.0
"""A login shell may do much before it starts a program."""
GREETING_BYTES = 64 << 10
"""What a login shell may print before the far side greets."""
KEPT_ERRORS = 4096
END_SECONDS = 2.0
LONGEST_TEXT = 300
"""Characters of what a far side says that are shown."""

# The user's own configuration, keys and jump hosts; but nobody is asked anything, nothing is forwarded, and no command
# or terminal of the configuration gets between.
SSH_OPTIONS = (
    *("-T", "-a", "-x"),
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=10"),
    *("-o", "ServerAliveCountMax=3"),
    *("-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
)


class ConnectionLost(MachineError):
    """It ended while nobody asked anything, or during a question: asking again on another channel may help."""


class OtherVersion(MachineError):
    """It speaks another version of the protocol."""


class Channel(Protocol):
    """One question at a time."""

    def ask(self, question: Mapping[str, Any], seconds: float) -> Message:
        """The answer; raises MachineError, RunNotFound and JournalError. MachineError closes the channel, unless it is
        the answer."""
        ...

    def close(self) -> None: ...

    @property
    def is_open(self) -> bool: ...


def open_channel(place: Place, command: str, here: far.FarSide | None = None) -> Channel:
    """Raises MachineError where that is known at once; `here` answers for this machine."""
    if place.way == "http":
        return HttpChannel(place.target, place.token)
    if place.way == "local":
        assert here is not None
        return DirectChannel(here)
    return PipeChannel(["ssh", *SSH_OPTIONS, "--", place.target, far_command(command, place.folder)], place.target)


def far_command(program: str, folder: str = "") -> str:
    """For the shell of the far machine: nothing in it is understood by that shell but a home folder's `~/`."""
    words = [_quote(program), "reader"]
    if folder:
        words += ["--dir", _quote(folder)]
    return " ".join(words)


def _quote(word: str) -> str:
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


def check(answer: Message) -> Message:
    """The answer; raises the error that it is."""
    error = answer.json.get("error")
    if error is None:
        return answer
    found = error if is_mapping(error) else {}
    message = one_line(text(found.get("message")) or "an error without a message")[:LONGEST_TEXT]
    hint = text(found.get("hint"))
    kind = {"RunNotFound": RunNotFound, "JournalError": JournalError}.get(str(found.get("kind")), MachineError)
    raise kind(message, hint=one_line(hint)[:LONGEST_TEXT] if hint else None)


class DirectChannel:
    """This machine, in this process."""

    is_open = True

    def __init__(self, side: far.FarSide) -> None:
        self._side = side

    def ask(self, question: Mapping[str, Any], seconds: float) -> Message:
        # Encoded all the same: whoever asks finds the same types as from elsewhere.
        return check(messages.decode(far.encode_answer(self._side, question)))

    def close(self) -> None:
        """Nothing is open."""


class PipeChannel:
    """A far side on the standard input and output of a program, usually ssh."""

    def __init__(self, words: Sequence[str], host: str) -> None:
        self._host = host
        self._number = 0
        self._buffer = bytearray()
        self._errors = b""
        try:
            # In a session of its own: Ctrl-C is for us, and there is no terminal to ask for a password on.
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise MachineError(
                f"cannot start {words[0]}: {error.strerror}",
                hint="install OpenSSH's client" if words[0] == "ssh" else None,
            ) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        assert self._process.stderr is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._listener = threading.Thread(target=self._keep_errors, args=(self._process.stderr,), daemon=True)
        self._listener.start()
        self.is_open = True
        self._greeted = False

    def ask(self, question: Mapping[str, Any], seconds: float) -> Message:
        if not self.is_open:
            raise ConnectionLost("the connection was lost")
        until = time.monotonic() + seconds
        self._number += 1
        try:
            if not self._greeted:
                self._greet(until)
                self._greeted = True
            self._write(messages.encode(Message({**question, "id": self._number})), until)
            answer = messages.read(lambda size: self._take(size, until))
        except TimeoutError:
            self.close()
            raise MachineError(f"no answer within {seconds:g} s") from None
        except (EOFError, OSError):
            self._await_end()  # by itself, for its exit code and its last words
            self.close()
            raise self._explain_end() from None
        except MessageError as error:
            self.close()
            raise MachineError(f"invalid response: {error}") from None
        except BaseException:
            self.close()  # whatever interrupted us, the answer to this would be taken for the next one's
            raise
        if answer.json.get("id") != self._number:
            self.close()
            raise MachineError("response to a different request")
        return check(answer)

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        self._process.kill()
        self._await_end()
        self._listener.join(END_SECONDS)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _await_end(self) -> None:
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # it lives on without its output, or is stuck in the kernel

    # -- bytes

    def _greet(self, until: float) -> None:
        """Skip what a login shell prints before the far side does."""
        while messages.GREETING not in self._buffer or b"\n" not in self._buffer.partition(messages.GREETING)[2]:
            if len(self._buffer) > GREETING_BYTES:
                raise MessageError("the remote program did not respond as trainvitals")
            self._receive(until)
        line, _, rest = self._buffer.partition(messages.GREETING)[2].partition(b"\n")
        self._buffer = bytearray(rest)
        check_protocol(int(line) if line.isdigit() and len(line) < 9 else None, "")

    def _take(self, size: int, until: float) -> bytes:
        while len(self._buffer) < size:
            self._receive(until)
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def _receive(self, until: float) -> None:
        self._wait(select.POLLIN, self._from, until)
        data = os.read(self._from, 1 << 20)
        if not data:
            raise EOFError
        self._buffer += data

    def _write(self, data: bytes, until: float) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(select.POLLOUT, self._to, until)
            rest = rest[os.write(self._to, rest) :]

    def _wait(self, what: int, descriptor: int, until: float) -> None:
        poll = select.poll()
        poll.register(descriptor, what)
        if not poll.poll(max(until - time.monotonic(), 0.0) * 1000):
            raise TimeoutError

    def _keep_errors(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.read(1024):
                self._errors = (self._errors + data)[-KEPT_ERRORS:]

    def _explain_end(self) -> MachineError:
        said = [line.strip() for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        return explain_end(self._host, self._process.returncode, said, was_up=self._greeted)


def explain_end(host: str, code: int | None, said: Sequence[str], *, was_up: bool = False) -> MachineError:
    """Why the program ended, in words, from its exit code and what it said on standard error."""
    last = one_line(said[-1])[:LONGEST_TEXT] if said else ""
    whole = "\n".join(said)
    if "Permission denied" in whole or "Too many authentication failures" in whole:
        return MachineError(
            "SSH login needs a password", hint=f"set up a key: ssh-copy-id {host}; then try: ssh {host}"
        )
    if "Host key verification failed" in whole or "REMOTE HOST IDENTIFICATION HAS CHANGED" in whole:
        return MachineError("unknown or changed host key", hint=f"connect once: ssh {host}")
    if code == 127 or "command not found" in whole:
        return MachineError(
            "trainvitals was not found on the remote machine",
            hint="install it there, or set its path: remote_command: ~/venv/bin/trainvitals",
        )
    if code == 2 and ("unknown command" in whole or "reader" in last):
        return OtherVersion("the remote trainvitals is too old", hint=f"upgrade it on {host}")
    if was_up:
        return ConnectionLost(f"the connection was lost{f': {last}' if last else ''}")
    return MachineError(
        last.removeprefix("ssh: ") or "the remote program exited without output", hint=f"try: ssh {host}"
    )


def check_protocol(spoken: int | None, version: str) -> None:
    """Raises OtherVersion."""
    if spoken != messages.PROTOCOL:
        which = f"trainvitals {one_line(version)[:40]} there" if version else "the trainvitals there"
        older = spoken is not None and spoken < messages.PROTOCOL
        raise OtherVersion(
            f"{which} speaks version {spoken if spoken is not None else 'unknown'} of the protocol, not "
            f"{messages.PROTOCOL}",
            hint="upgrade trainvitals there" if older else "upgrade trainvitals here",
        )


class HttpChannel:
    """A server, `trainvitals serve`, which answers the same questions to who has its token."""

    is_open = True

    def __init__(self, address: str, token: str) -> None:
        import secrets

        self._address = address
        self._token = token
        self._session = secrets.token_hex(16)
        """By which the server knows what it has told us already."""
        self._number = 0

    def ask(self, question: Mapping[str, Any], seconds: float) -> Message:
        self._number += 1
        data = messages.encode(Message({**question, "id": self._number, "session": self._session}))
        headers = {"Content-Type": "application/octet-stream"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._address}/api/v1/reader", data, headers, method="POST")
        try:
            # An answer that is cut off because it is too large, or because time is over, is no message.
            found = http_client.send(request, seconds, most=messages.MOST_JSON + messages.MOST_REST)
            if not found.is_good:
                raise self._explain(found)
            answer = messages.decode(found.body)
        except TimeoutError:
            raise MachineError(f"no answer within {seconds:g} s") from None
        except OSError as error:
            raise MachineError(one_line(error)[:LONGEST_TEXT]) from error
        except MessageError as error:
            raise MachineError(f"invalid response: {error}") from None
        if whole(answer.json.get("id")) != self._number:
            raise MachineError("response to a different request")
        return check(answer)

    def _explain(self, found: http_client.Answer) -> MachineError:
        if found.status == 401:
            return MachineError(
                "the server rejected the token",
                hint="use the token of its user, from serve.token in the runtime folder there: https://TOKEN@HOST:PORT",
            )
        if found.status == 404:
            return OtherVersion("the remote trainvitals is too old", hint="upgrade it there")
        if found.status == 409:
            return MachineError(found.text[:LONGEST_TEXT])
        return MachineError(f"the server answers {found.status} {one_line(found.reason)[:80]}")

    def close(self) -> None:
        """Every question is a connection of its own."""
