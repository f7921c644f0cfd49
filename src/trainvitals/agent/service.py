"""The agent as a service: the text of a systemd unit."""

from __future__ import annotations


def systemd_unit(executable: str, *, user: bool = True) -> str:
    """A unit that runs `<executable> -P -m trainvitals.agent --keep`; `executable` is a Python interpreter.

    With `user` for `systemctl --user`, else for the whole machine (then set the user in it).
    """
    quoted = '"' + executable.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
    return "\n".join(
        [
            "[Unit]",
            "Description=trainvitals agent: monitors hardware and training runs",
            "",
            "[Service]",
            f"ExecStart={quoted} -P -m trainvitals.agent --keep",
            "Restart=on-failure",
            "RestartSec=5",
            "Nice=5",
            "TimeoutStopSec=10",
            *([] if user else ["# The user whose runs are monitored:", "User=nobody"]),
            "",
            "[Install]",
            f"WantedBy={'default.target' if user else 'multi-user.target'}",
            "",
        ]
    )
