"""The catalogue of conditions: what a leak, a divergence, an idle GPU, too hot and nearly full are, each once.

Live rules, findings, PromQL alerts, the colours of numbers and what `watch` notices are made from these rows, so one
changed threshold (the setting `alerts.thresholds`) is seen by all of them. Adding a rule is one row in `gpu.py`,
`host.py`, `training.py`, `rl.py` or `processes.py`; docs/rules.md is written from them.

The training process loads this, so it imports nothing but the standard library.
"""

from trainvitals.conditions.catalogue import GROUPS as GROUPS
from trainvitals.conditions.catalogue import ROWS as ROWS
from trainvitals.conditions.catalogue import Conditions as Conditions
from trainvitals.conditions.catalogue import Level as Level
from trainvitals.conditions.row import Colour as Colour
from trainvitals.conditions.row import Condition as Condition
from trainvitals.conditions.row import LiveRule as LiveRule
from trainvitals.conditions.row import PrometheusRule as PrometheusRule
from trainvitals.conditions.row import Severity as Severity
from trainvitals.conditions.row import Threshold as Threshold
