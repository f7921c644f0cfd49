"""What to do about an Xid error, in the words of NVIDIA's catalogue of recovery actions.
Tested in tests/alerts/test_rules.py."""

from __future__ import annotations

# https://docs.nvidia.com/deploy/xid-errors/
_PROGRAM = "An error in your program: restart it, and check for out-of-bounds access with compute-sanitizer."
_IGNORE = "Nothing to do now; check the errors around it, and watch whether it recurs."
_RESET = "Stop the programs on this GPU and reset it: nvidia-smi --gpu-reset -i {gpu}. If it recurs, replace it."
_RESTART = "Restart the machine. If it recurs, check power and seating, then replace the GPU."
_LINK = "Check the NVLink: nvidia-smi nvlink --status. Reset all GPUs together; if it recurs, have it serviced."

_ACTIONS: dict[int, str] = {
    **dict.fromkeys((13, 31, 32, 69, 80), _PROGRAM),
    94: "A contained memory error: restart only your program. Drain the node after the job.",
    **dict.fromkeys((43, 45, 63, 92, 154), _IGNORE),
    48: "An uncorrectable ECC memory error. Restart from the last checkpoint, and reset the GPU.",
    54: "Connect the GPU's power cable.",
    **dict.fromkeys((46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), _RESET),
    79: _RESTART,
    **dict.fromkeys((74, *range(144, 151)), _LINK),
}


def advise(code: int, gpu: object) -> str:
    """One sentence or two, for any code."""
    action = _ACTIONS.get(code, "Look up the code in NVIDIA's Xid catalog and save the kernel log (dmesg).")
    return action.replace("{gpu}", str(gpu))
