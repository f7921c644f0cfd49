"""A machine with NVIDIA GPUs that are not there: builds `sources/fake_nvml.c` and scripts it.

The fake is a real `libnvidia-ml.so.1`: the real nvidia-ml-py, nvitop and gpustat run on it unchanged.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent / "sources" / "fake_nvml.c"
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path, *flags: str) -> Path:
    """Compile the fake into `folder`; needs gcc or another C compiler named by $CC."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    compiler = os.environ.get("CC", "gcc")
    # Without a SONAME: with one, the loader would hand a copy that some test has loaded to the next test that
    # looks for the real library.
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, *flags, "-o", library, SOURCE, "-lm"], check=True)
    return library


class FakeNvml:
    """One fake machine: a copy of the library with a script and a trace of its own."""

    def __init__(self, library: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library = Path(shutil.copy(library, folder / LIBRARY))
        self.trace_file = folder / "trace"
        self._script = folder / "script"
        self._loaded: ctypes.CDLL | None = None
        self._earlier: set[threading.Thread] = set()
        self.script("")

    def script(self, text: str) -> None:
        """What the machine is from now on; the language is described in fake_nvml.c."""
        new = self._script.with_suffix(".new")
        new.write_text(text + "\n")
        new.replace(self._script)
        if self._loaded is not None:
            self._loaded.fakeNvmlReload()

    def env(self) -> dict[str, str]:
        """The environment for a child process that is to see this machine."""
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_NVML_SCRIPT": str(self._script),
            "FAKE_NVML_TRACE": str(self.trace_file),
        }

    def load(self) -> None:
        """Put this machine into the present process, where nvidia-ml-py finds it (see `fake_nvml`)."""
        import pynvml

        os.environ["FAKE_NVML_SCRIPT"] = str(self._script)
        self._earlier = set(threading.enumerate())
        self._loaded = ctypes.CDLL(str(self.library))
        pynvml.nvmlLib = self._loaded
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def unload(self) -> None:
        """Take it out again: nvidia-ml-py finds no library, as on any machine without a driver.

        Threads that still listen to it or hang in it are waited for: what they ask next would go to the machine
        of another test.
        """
        if self._loaded is None:
            return
        import pynvml

        for thread in set(threading.enumerate()) - self._earlier:
            if thread.name.startswith(("nvidia-", "unit nvidia:")):
                _join(thread)
        self._loaded = None
        os.environ.pop("FAKE_NVML_SCRIPT", None)
        pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()

    def calls(self) -> Counter[tuple[str, int | None]]:
        """How often each function was called on which GPU (None: no GPU in particular) since the last time.

        The calls of a child process are counted once it has ended.
        """
        if self._loaded is not None:
            self._loaded.fakeNvmlTrace(str(self.trace_file).encode())
        counted: Counter[tuple[str, int | None]] = Counter()
        if self.trace_file.exists():
            for line in self.trace_file.read_text().splitlines():
                _pid, function, gpu, calls = line.split()
                counted[function, None if gpu == "-" else int(gpu)] += int(calls)
            self.trace_file.unlink()
        return counted


def _join(thread: threading.Thread) -> None:
    while True:
        try:
            return thread.join(10)
        except RuntimeError:  # listed already, but on a busy machine not begun yet
            time.sleep(0.01)
