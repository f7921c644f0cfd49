"""Callbacks for training frameworks, and the classic monitors. One file per framework.

Each is imported only when it is used (`trainvitals.TransformersCallback` imports transformers then). They translate:
what a framework reports becomes lines and events of a run; all measurements are made by `trainer.watch`.

Another package's callback class, an entry point of the group `trainvitals.integrations`, is `trainvitals.ItsName`.
"""

from __future__ import annotations

from operator import attrgetter

import trainvitals
from trainvitals.plugins import Registry

REGISTRY: Registry[type] = Registry("integrations", (), type, name=attrgetter("__name__"), taken=trainvitals.__all__)
"""Only those of other packages: ours are in the menu of `trainvitals`."""
