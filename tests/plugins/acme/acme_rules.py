"""A rule, in the language of trainvitals.yaml."""

from trainvitals.conditions import Condition, LiveRule

WARM = Condition(
    "acme_warm",
    "gpu",
    "a warm Acme GPU",
    "warning",
    "Nothing.",
    live=LiveRule(
        "gpu[*].temperature_celsius > 40", "GPU {gpu_index} is warm: {temperature_celsius:.0f} °C", wait="1s"
    ),
)
