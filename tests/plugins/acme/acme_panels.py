"""A chart for every dashboard."""

from trainvitals.views.panels import Panel

SPIN = Panel("acme_spin", "Acme spin", "gpu", "gpu", ("acme_spin_rpm",), by=("gpu_index",))
