"""Whether another user may have written a file or folder that was found, not named.

A settings file can start programs and send messages; so can the queue in a run folder. In a place that others can
write, anybody could have put one there, and it would act with the rights of whoever trains or watches there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def explain_foreign(path: Path) -> str | None:
    """Why somebody besides this user and root may have written what is there; None if nobody else can have."""
    try:
        return explain_foreign_status(path.stat())
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"


def explain_foreign_status(found: os.stat_result) -> str | None:
    """The same of an open file, which nobody can exchange between the look and the use."""
    if not hasattr(os, "geteuid"):
        return None
    if not _is_ours(found):
        return f"it belongs to {user_name(found.st_uid)}"
    return "others may write it" if _others_may_write(found) else None


def find_distrust(path: Path, start: Path) -> str | None:
    """Why a settings file is not to be used by this user, who works in `start`; None if it may be."""
    if not hasattr(os, "geteuid"):
        return None
    try:
        file, folder = path.stat(), path.parent.stat()
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    # Whoever works in somebody's folder, as root in a container does, runs what that person wrote anyway.
    at_home = path.parent == start and file.st_uid == folder.st_uid and not folder.st_mode & stat.S_IWOTH
    if not _is_ours(file) and not at_home:
        return f"it belongs to {user_name(file.st_uid)}"
    if _others_may_write(file):
        return "others may write it"
    # In a folder like /tmp only the owner of a file may put another in its place.
    if _others_may_write(folder) and not folder.st_mode & stat.S_ISVTX and not at_home:
        return "others may write its folder"
    return None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), 0)


def _others_may_write(status: os.stat_result) -> bool:
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_private_group(status.st_gid, status.st_uid)


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether only that user is in the group, as on systems that give each user a group."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return gid == uid  # in a container that does not know the user
    return user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name} and group.gr_name == user.pw_name


def user_name(uid: int) -> str:
    """As people know it; the number where this machine does not know the user."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
