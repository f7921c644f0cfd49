"""Colours: a handful of roles, and a palette for each kind of terminal.

`dark`, `light` and `contrast` are for terminals with many colours. `terminal` uses the terminal's own 16 colours on
its own background; `mono` uses none, only bold, dim and reverse (NO_COLOR).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rich.style import Style


@dataclass(frozen=True, eq=False)
class Palette:
    """What each role looks like. Colours are as rich and Textual spell them."""

    name: str
    background: str
    text: Style
    strong: Style
    dim: Style
    faint: Style
    accent: Style
    good: Style
    warning: Style
    critical: Style
    selected: Style
    """Laid over a row: another background, or an underline where there are few colours."""
    series: tuple[Style, ...]
    heat: tuple[Style, ...]
    """From cold to hot, for the ranks' step times."""
    phases: Mapping[str, Style] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        """Whether the terminal's colours are to be left as they are."""
        return self.background == "ansi_default"

    @cached_property
    def severities(self) -> Mapping[str | None, Style]:
        """Severity to style."""
        return {
            "ok": self.good,
            "info": self.accent,
            "warning": self.warning,
            "error": self.critical,
            "critical": self.critical,
        }

    def severity(self, name: str | None) -> Style:
        return self.severities.get(name, self.text)


def _palette(
    name: str,
    background: str,
    text: str,
    dim: str,
    faint: str,
    accent: str,
    good: str,
    warning: str,
    critical: str,
    selected: str,
    series: str,
    heat: str,
) -> Palette:
    under = Style() if background == "ansi_default" else Style(bgcolor=background)

    def style(words: str) -> Style:
        return under + Style.parse(words)

    colours = tuple(style(colour) for colour in series.split())
    return Palette(
        name=name,
        background=background,
        text=style(text),
        strong=style(f"bold {text}"),
        dim=style(dim),
        faint=style(faint),
        accent=style(accent),
        good=style(good),
        warning=style(warning),
        critical=style(critical),
        selected=Style.parse(selected),
        series=colours,
        heat=tuple(style(colour) for colour in heat.split()),
        phases=dict(
            zip(
                (
                    "data_time",
                    "transfer_time",
                    "forward_time",
                    "backward_time",
                    "optimizer_time",
                    "other_time",
                ),
                (colours[1], colours[5], colours[0], colours[4], colours[2], style(dim)),
                strict=True,
            )
        ),
    )


PALETTES: tuple[Palette, ...] = (
    _palette(
        "dark",
        "#11151c",
        text="#c8d0da",
        dim="#7b8794",
        faint="#343d49",
        accent="#82aaff",
        good="#8fbf7f",
        warning="#e6b455",
        critical="bold #ff6b7d",
        selected="on #232c3a",
        series="#82aaff #e6b455 #8fbf7f #f78c6c #c099ff #5fc9c4 #ff8fa3 #a8b3c2",
        heat="#2f4a63 #3f6f86 #6f9d7c #d6b45a #ef8a4e #ff5a6e",
    ),
    _palette(
        "light",
        "#fbfbf8",
        text="#2a2f36",
        dim="#6d7680",
        faint="#d3d7da",
        accent="#1f5fbf",
        good="#3c7a2e",
        warning="#9a6400",
        critical="bold #c01733",
        selected="on #e4e9f1",
        series="#1f5fbf #b56b00 #3c7a2e #b8451f #7a3fbf #0f7c78 #b3305a #5b6673",
        heat="#a9c4d9 #7fa8b8 #8fb58c #dcb84f #e07f2f #c01733",
    ),
    _palette(
        "contrast",
        "#000000",
        text="#ffffff",
        dim="#c0c0c0",
        faint="#6a6a6a",
        accent="#56b4e9",
        good="#00d1a0",
        warning="#ffcc00",
        critical="bold #ff5f5f",
        selected="on #303030",
        series="#56b4e9 #ffcc00 #00d1a0 #ff9f45 #e58fff #f0e442 #ff8fb0 #ffffff",
        heat="#3a3a3a #56b4e9 #00d1a0 #f0e442 #ff9f45 #ff5f5f",
    ),
    _palette(
        "terminal",
        "ansi_default",
        text="default",
        dim="bright_black",
        faint="bright_black",
        accent="cyan",
        good="green",
        warning="yellow",
        critical="bold red",
        selected="bold underline",
        series="cyan yellow green red magenta blue bright_magenta default",
        heat="blue cyan green yellow bright_red red",
    ),
    _palette(
        "mono",
        "ansi_default",
        text="default",
        dim="dim",
        faint="dim",
        accent="bold",
        good="default",
        warning="bold",
        critical="bold",
        selected="bold underline",
        series="default default default default default default default default",
        heat="dim default default default bold bold",
    ),
)

BY_NAME: Mapping[str, Palette] = {palette.name: palette for palette in PALETTES}


def choose(colours: str | None, no_color: bool) -> Palette:
    """The palette for a terminal's abilities: `colours` is rich's colour system, None without colours."""
    if no_color or colours is None:
        return BY_NAME["mono"]
    return BY_NAME["terminal"] if colours in ("standard", "windows") else BY_NAME["dark"]


def following(palette: Palette) -> Palette:
    """The next one, around the circle."""
    return PALETTES[(PALETTES.index(palette) + 1) % len(PALETTES)]
