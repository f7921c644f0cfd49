"""A result of a benchmark, and how it is printed: the same rows on the screen and in docs/performance.md."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any


@dataclass
class Table:
    """One question and its answers, with the goal where the design has one."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    goal: str = ""
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in self.rows]
        if self.goal:
            lines += ["", f"Goal: {self.goal}"]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"


def _text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.2f}" if abs(cell) < 100 else f"{cell:,.0f}"
    return str(cell)


def machine() -> str:
    """The machine in one line, without its name."""
    import os

    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {platform.machine()}, {system}, Python {platform.python_version()}"
