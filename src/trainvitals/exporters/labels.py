"""The labels of a series, made once: the same few hundred sets of them come back with every page.

A label set is sorted, escaped and put together when it is first seen, and shared from then on, which is most of the
work of writing a page. Tested in tests/exporters/test_page.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

KEPT = 32_768
"""Label sets that are remembered, of which a rank has 180; beyond them a page is slower, not wrong."""


class Labels(dict[str, str]):
    """A label set that nobody changes, with its text on the page: `{gpu="0",host="box"}`, empty for no labels."""

    __slots__ = ("text",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self.text = format_labels(labels)


ROLE = "role"
"""Left out where it is empty, as it is for trainers: their series are called as before there were roles."""


@lru_cache(KEPT)
def share(names: tuple[str, ...], values: tuple[str, ...]) -> Labels:
    """The labels of these names and values, always the same object."""
    return Labels({name: value for name, value in zip(names, values, strict=True) if value or name != ROLE})


def format_labels(labels: Mapping[str, str]) -> str:
    """As they are written on a page, in the order of their names."""
    inside = ",".join(f'{name}="{escape(labels[name])}"' for name in sorted(labels))
    return f"{{{inside}}}" if inside else ""


def text_of(labels: Mapping[str, str]) -> str:
    """The same, of shared labels without any work."""
    return labels.text if type(labels) is Labels else format_labels(labels)


def escape(text: str) -> str:
    """A label value as written between the quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
