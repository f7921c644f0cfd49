"""Xid errors of NVIDIA's driver: what each code means, how bad it is and what to do.

From NVIDIA's catalogue, https://docs.nvidia.com/deploy/xid-errors/, and its list of what only older GPUs report;
actions are those of its resolution buckets. Codes that neither uses are not here. Tested in tests/test_conditions.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainvitals.conditions.row import Severity

_PROGRAM = "An error in your program: restart it, and check for out-of-bounds access with compute-sanitizer."
_AGAIN = "Restart your program from the last checkpoint. If it recurs, have the GPU checked."
_ACTION = "See the action that it names: nvidia-smi -q -i {gpu}, GPU Recovery Action."
_IGNORE = "Nothing to do now; check the errors around it, and watch whether it recurs."
_RESET = "Stop the programs on this GPU and reset it: nvidia-smi --gpu-reset -i {gpu}. If it recurs, replace it."
_RESTART = "Restart the machine. If it recurs, check power and seating, then replace the GPU."
_LINK = "Check the NVLink: nvidia-smi nvlink --status. Reset all GPUs together; if it recurs, have it serviced."
_LOOK_UP = "Look up the code in NVIDIA's Xid catalog and save the kernel log (dmesg)."


class Xid(NamedTuple):
    """One code."""

    meaning: str
    severity: Severity
    action: str
    """`{gpu}` is the index of the GPU."""

    def advise(self, gpu: object) -> str:
        return self.action.replace("{gpu}", str(gpu))


_UNLISTED = Xid("see NVIDIA's Xid catalog", "warning", _LOOK_UP)


def _alike(codes: Iterable[int], meaning: str, severity: Severity, action: str) -> dict[int, Xid]:
    return dict.fromkeys(codes, Xid(meaning, severity, action))


XIDS: Mapping[int, Xid] = {
    **_alike((1, 2, 3, 4, 6, 7, 11, 25), "a corrupted command buffer reached the GPU", "warning", _AGAIN),
    8: Xid("the GPU stopped processing", "warning", _AGAIN),
    **_alike((9, 12), "the driver could not program the GPU", "critical", _RESET),
    13: Xid("a kernel raised an exception, usually an out-of-bounds access", "warning", _PROGRAM),
    **_alike((16, 19, 56), "an error of the display engine", "warning", _IGNORE),
    18: Xid("bus mastering is disabled for the GPU", "critical", _RESTART),
    **_alike((20, 21, 22), "a corrupted command buffer reached the video engine", "warning", _AGAIN),
    24: Xid("a GPU semaphore timed out", "warning", _RESET),
    26: Xid("the GPU's memory timed out", "critical", _RESET),
    **_alike((27, 28, 29, 34, 35, 36, 42, 47, 60, 65), "the video engine raised an exception", "warning", _AGAIN),
    30: Xid("a GPU semaphore could not be accessed", "warning", _RESET),
    31: Xid("a kernel accessed unmapped memory", "warning", _PROGRAM),
    32: Xid("a corrupted command buffer reached the GPU", "warning", _PROGRAM),
    **_alike((33, 59), "the GPU's microcontroller reported an error", "critical", _RESET),
    **_alike((37, 38), "the driver's firmware reported an error", "warning", _IGNORE),
    **_alike(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        "a copy engine raised an exception",
        "warning",
        _AGAIN,
    ),
    43: Xid("the GPU stopped the program after a fault of the program", "warning", _IGNORE),
    44: Xid("the GPU reported a fault during a context switch", "warning", _IGNORE),
    45: Xid("a program's work was cleaned up after an earlier error or because it was killed", "warning", _IGNORE),
    46: Xid("the GPU stopped processing and timed out", "critical", _RESET),
    48: Xid(
        "an uncorrectable ECC memory error",
        "critical",
        "An uncorrectable ECC memory error. Restart from the last checkpoint, and reset the GPU.",
    ),
    54: Xid("a power cable is not connected", "critical", "Connect the GPU's power cable."),
    **_alike((57, 58), "the interface to the GPU's memory is unstable", "critical", _RESET),
    61: Xid("the GPU's microcontroller reported an error", "critical", _RESET),
    62: Xid("the GPU's microcontroller halted", "critical", _RESET),
    63: Xid("a bad memory row will be remapped at the next reset", "warning", _IGNORE),
    64: Xid("a bad memory row could not be remapped", "critical", _RESET),
    **_alike((66, 67), "the driver accessed the GPU in an illegal way", "warning", _IGNORE),
    **_alike((68, 83, 84, 88, 89, 96, 97, 98), "the video decoder raised an exception", "warning", _AGAIN),
    69: Xid("the graphics engine raised an exception", "warning", _PROGRAM),
    **_alike((73, 142), "the video encoder failed", "warning", _LOOK_UP),
    74: Xid("an NVLink error", "critical", _LINK),
    78: Xid("a virtual GPU could not start", "critical", "Update the driver and the vGPU software."),
    79: Xid("the GPU has fallen off the bus", "critical", _RESTART),
    80: Xid("corrupted data reached the GPU", "warning", _PROGRAM),
    81: Xid("an error of the VGA subsystem", "warning", _IGNORE),
    **_alike((82, *range(99, 106)), "the JPEG engine failed", "warning", _AGAIN),
    **_alike((86, 139), "the optical flow engine raised an exception", "warning", _AGAIN),
    92: Xid("many corrected memory errors in a short time", "warning", _IGNORE),
    93: Xid("the GPU's InfoROM is written too often", "warning", _IGNORE),
    94: Xid(
        "a memory error was contained to one program; restart it",
        "warning",
        "A contained memory error: restart only your program. Drain the node after the job.",
    ),
    95: Xid("an uncontained memory error; the GPU needs a reset", "critical", _RESET),
    **_alike((106, 107), "a test message of the board's management interface", "info", _IGNORE),
    109: Xid("a context switch timed out", "critical", _RESET),
    110: Xid("a security fault", "critical", _RESET),
    **_alike(range(112, 119), "an error of the display", "warning", _IGNORE),
    119: Xid("the GPU's system processor (GSP) is not responding", "critical", _RESET),
    120: Xid("the GPU's system processor (GSP) failed", "critical", _RESET),
    121: Xid("an error on the link between CPU and GPU", "warning", _IGNORE),
    **_alike((122, 123, 124), "the GPU's flash memory could not be accessed", "warning", _LOOK_UP),
    125: Xid("the file system of the GPU's InfoROM has an error", "warning", _LOOK_UP),
    136: Xid("an NVLink could not be trained", "critical", _RESET),
    **_alike((108, 137), "an NVLink access was rejected by the remote end", "warning", _IGNORE),
    **_alike((138, 152, 153), "an error of the deep learning accelerator (DLA)", "warning", _IGNORE),
    140: Xid("unrecovered ECC memory errors", "critical", _RESET),
    141: Xid("an error of CUDA's fast path", "warning", _IGNORE),
    143: Xid("the GPU failed to initialize", "critical", _RESET),
    **_alike(range(144, 151), "an NVLink error", "critical", _LINK),
    151: Xid("a key of confidential computing could not be renewed", "critical", "Restart the virtual machine."),
    154: Xid("the driver requests a different recovery action", "critical", _ACTION),
    155: Xid("an NVLink error found by the driver", "critical", _RESET),
    156: Xid("a part of the GPU will be retired at the next reset", "warning", _RESET),
    157: Xid("a part of the GPU could not be retired", "warning", _LOOK_UP),
    158: Xid("the GPU timed out for good", "critical", _RESET),
    159: Xid("an error on the link between CPU and GPU", "warning", _LOOK_UP),
    160: Xid("a memory channel is retired", "warning", _IGNORE),
    161: Xid("a memory channel could not be retired", "warning", _LOOK_UP),
    **_alike((162, 163), "the power smoothing of the GPU was switched on or off", "info", _IGNORE),
    **_alike((164, 165), "the power smoothing of the GPU is worn out", "warning", _LOOK_UP),
    **_alike((166, 170), "an NVLink error in confidential computing", "critical", _LOOK_UP),
    167: Xid("the GPU's PCIe link timed out", "critical", _LOOK_UP),
    168: Xid("errors in protected memory: the GPU has less memory", "critical", _LOOK_UP),
    169: Xid("the GPU's security processor halted", "critical", _LOOK_UP),
    171: Xid("an uncorrectable error in device memory; see Xid 48", "critical", _RESET),
    172: Xid("an uncorrectable error in on-chip memory; see Xid 48", "critical", _RESET),
}


def find_xid(code: int) -> Xid:
    """What is known of any code."""
    return XIDS.get(code, _UNLISTED)
