"""Files that a command writes: whole or not at all, and never over another by accident.
Tested in tests/views/cli/test_export.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trainvitals.errors import TrainvitalsError
from trainvitals.runtime import replacing
from trainvitals.views.cli.arguments import UsageError
from trainvitals.views.cli.terminal import is_terminal


def check_target(output: str, force: bool) -> None:
    """Raises if the file is there and must not be replaced."""
    if output != "-" and Path(output).exists() and not force:
        raise TrainvitalsError(f"{output} already exists", hint="to overwrite it: --force")


def write_whole(target: Path, write: Callable[[BinaryIO], None]) -> None:
    """The file appears whole or not at all."""
    try:
        with replacing(target, 0o666) as file:
            write(file)
    except OSError as error:
        raise TrainvitalsError(
            f"cannot write {target}: {error.strerror or error}", hint="choose another file: -o FILE"
        ) from None


def write_file(output: str, content: bytes, *, force: bool) -> None:
    """To the file, or to standard output for `-`; pictures are not for a terminal."""
    if output == "-":
        if is_terminal(sys.stdout) and content[:4] == b"\x89PNG":
            raise UsageError("not writing a PNG to a terminal", hint="choose a file: -o chart.png")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    check_target(output, force)

    def write(file: BinaryIO) -> None:
        file.write(content)

    write_whole(Path(output), write)
