"""Small values out of /sys and /proc files: None when a file is missing, refused, or makes no sense.

A driver answers a question it cannot answer now with an error (EIO, EPERM, ENODEV, EINVAL), an empty file, a
word, or a number that no hardware has. All of those are the same to a reader: this value is absent now.
Tested in tests/sources/test_amd.py.
"""

from __future__ import annotations

import os
import re
from functools import cache

PAGE = 4096
"""A sysfs attribute is at most one page."""

_DISPLAY_CLASS = "0x03"

PCI_IDS = ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids")


def read_bytes(path: str, limit: int = PAGE) -> bytes | None:
    """The file, at most `limit` bytes. One page is one read, as the kernel means attributes to be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
    try:
        raw = os.read(descriptor, limit)
        # A longer file of /proc comes in pieces of about a page, whatever was asked for.
        while limit > PAGE and len(raw) < limit and (piece := os.read(descriptor, limit - len(raw))):
            raw += piece
        return raw
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_text(path: str, limit: int = PAGE) -> str | None:
    """The text without surrounding white space; None also for an empty file."""
    raw = read_bytes(path, limit)
    if raw is None:
        return None
    return raw.decode("utf-8", "replace").strip() or None


def read_int(path: str) -> int | None:
    """A decimal integer, or None."""
    raw = read_bytes(path)
    try:
        return int(raw) if raw is not None else None
    except ValueError:
        return None


def list_folder(path: str) -> list[str]:
    """Sorted names in a folder; empty when it cannot be listed."""
    try:
        return sorted(entry.name for entry in os.scandir(path))
    except OSError:
        return []


def list_displays(root: str, vendor: str) -> list[str]:
    """PCI addresses (`0000:01:00.0`) of a vendor's display and 3D controllers, driver or not, in order."""
    devices = f"{root}/bus/pci/devices"
    return [
        address
        for address in list_folder(devices)
        if read_text(f"{devices}/{address}/vendor") == vendor
        and (read_text(f"{devices}/{address}/class") or "").startswith(_DISPLAY_CLASS)
    ]


def within(value: float | None, low: float, high: float) -> float | None:
    """`value` if it lies in low..high, else None: a sensor that reads 655 % or 16,000 °C is not working."""
    return value if value is not None and low <= value <= high else None


def scaled(value: int | None, divisor: float, low: float, high: float) -> float | None:
    """`value / divisor` if that lies in low..high, else None."""
    return within(value / divisor, low, high) if value is not None else None


@cache
def read_pci_name(vendor: str, device: str, files: tuple[str, ...] = PCI_IDS) -> str | None:
    """What the machine's list of PCI names calls a device (ids as four hex digits); None without a list."""
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as lines:
                return parse_pci_name(lines.read(), vendor, device)
        except OSError:
            continue
    return None


def parse_pci_name(text: str, vendor: str, device: str) -> str | None:
    """The name of one device in the text of a pci.ids file, `[...]` (the product name) preferred."""
    block = re.search(rf"^{re.escape(vendor)}  .*\n((?:[\t#].*\n|\n)*)", text, re.MULTILINE)
    line = block and re.search(rf"^\t{re.escape(device)}  (.+)$", block[1], re.MULTILINE)
    if not line:
        return None
    product = re.search(r"\[(.+)\]", line[1])
    return product[1] if product else line[1].strip()
