"""The dashboard, declared once: terminal, web page, report and Grafana draw these rows.

A row is pure data and names metrics as the catalog does; its unit comes from there. Adding a panel is one
row. The order is the order on the screen; `importance` decides what goes first when there is little room:
1 is the overview of every view, 2 is good to have, 3 is for whoever looks for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal, get_args

from trainvitals import catalog
from trainvitals.conditions import Conditions, Level
from trainvitals.plugins import Registry

Group = Literal["rl", "training", "performance", "gpu", "system", "process"]
Chart = Literal["line", "stacked", "states"]
"""`line`: one line per series; `stacked`: the metrics add up to a whole; `states`: words over time."""

GROUPS: tuple[tuple[Group, str], ...] = (
    ("rl", "Reinforcement learning"),
    ("training", "Training"),
    ("performance", "Performance"),
    ("gpu", "GPUs"),
    ("system", "Host"),
    ("process", "Processes"),
)
"""Groups and their headings, in the order of the screen."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart."""

    id: str
    """Stable: in addresses, saved files and the dashboards' JSON."""
    title: str
    group: Group
    table: catalog.Table
    metrics: tuple[str, ...]
    """Catalog names. Several are drawn in one chart because they share a unit."""
    importance: int = 2
    chart: Chart = "line"
    by: tuple[str, ...] = ()
    """Labels that distinguish the lines of one metric, in words a person uses: `gpu_index`, `rank`."""
    limit: str | None = None
    """Metric of the same table that is the ceiling of these: drawn as a line, used as the full bar."""
    low: float | None = 0.0
    high: float | None = None
    """Ends of the axis where they are known beforehand; None follows the data."""
    log_scale: bool = False
    """Whether a logarithmic axis makes sense, so that it is offered."""
    log_first: bool = False
    """Whether it is drawn on one unless somebody asks for the other."""
    smooth: bool = False
    """Whether its values are noisy, so that a smoothed line is drawn over the raw one."""

    def check(self) -> None:
        """ValueError for a panel that no view could draw."""
        known = self.group in dict(GROUPS) and self.chart in get_args(Chart) and self.table in catalog.TABLES
        if not known or not self.metrics:
            raise ValueError(f"a panel needs a group ({', '.join(dict(GROUPS))}), a table, a chart and metrics")

    @property
    def unit(self) -> str:
        """As the catalog writes it, empty for a bare number; of a counter, the unit of what is counted."""
        metric = catalog.find(self.table, self.metrics[0])
        return metric.unit if metric is not None else ""

    @property
    def is_rate(self) -> bool:
        """Counters are drawn as their rate per second."""
        metric = catalog.find(self.table, self.metrics[0])
        return metric is not None and metric.kind == "counter"

    @property
    def without_validation(self) -> tuple[str, ...]:
        """Its metrics but for the validation that is drawn beside them."""
        return tuple(name for name in self.metrics if catalog.find(self.table, name) not in catalog.VALIDATION)

    @property
    def key(self) -> tuple[str, str]:
        """(table, first metric): enough to find the panel of a metric."""
        return self.table, self.metrics[0]


_GPU = ("gpu_index",)
_RANK = ("rank",)

_OWN: tuple[Panel, ...] = (
    # -- how a policy learns from its own responses
    Panel(
        "rl_reward",
        "Reward",
        "rl",
        "training",
        ("rl_reward", "rl_validation_reward"),
        1,
        by=_RANK,
        low=None,
        smooth=True,
    ),
    Panel("rl_entropy", "Entropy", "rl", "training", ("rl_entropy",), 1, by=_RANK, log_scale=True, smooth=True),
    Panel("rl_kl", "KL from the reference", "rl", "training", ("rl_kl",), by=_RANK, log_scale=True, smooth=True),
    Panel(
        "rl_response_length",
        "Response length",
        "rl",
        "training",
        ("rl_response_length", "rl_response_length_max"),
        1,
        by=_RANK,
        log_scale=True,
        smooth=True,
    ),
    Panel(
        "rl_phases",
        "Phases of a step",
        "rl",
        "training",
        (
            *("rl_generation_time", "rl_reward_time", "rl_logprob_time", "rl_reference_time", "rl_values_time"),
            *("rl_advantage_time", "rl_update_time", "rl_critic_update_time", "rl_weight_sync_time", "rl_idle_time"),
        ),
        1,
        "stacked",
        by=_RANK,
    ),
    # Not in every step, so that nothing can be stacked on them.
    Panel(
        "rl_pauses",
        "Validation and checkpoints",
        "rl",
        "training",
        ("rl_validation_time", "rl_checkpoint_time"),
        by=_RANK,
    ),
    Panel(
        "rl_shares",
        "Truncated, clipped, dead groups",
        "rl",
        "training",
        ("rl_truncated", "rl_clip_fraction", "rl_dead_groups"),
        by=_RANK,
        high=1.0,
    ),
    Panel("rl_mixed_groups", "Groups with mixed rewards", "rl", "training", ("rl_mixed_groups",), by=_RANK, high=100.0),
    Panel(
        "rl_mismatch",
        "Mismatch of rollout and trainer",
        "rl",
        "training",
        ("rl_mismatch_kl", "rl_mismatch_logprob", "rl_mismatch_probability"),
        by=_RANK,
        log_scale=True,
        smooth=True,
    ),
    Panel(
        "rl_agreement",
        "Agreement of rollout and trainer",
        "rl",
        "training",
        ("rl_mismatch_correlation", "rl_mismatch_factor"),
        by=_RANK,
        low=None,
    ),
    Panel("rl_staleness", "Staleness", "rl", "training", ("rl_staleness", "rl_staleness_max"), by=_RANK),
    Panel("rl_reward_std", "Spread of rewards", "rl", "training", ("rl_reward_std",), 3, by=_RANK, smooth=True),
    # -- how the model learns
    Panel(
        "loss",
        "Loss",
        "training",
        "training",
        ("loss", "validation_loss"),
        1,
        by=_RANK,
        low=None,
        log_scale=True,
        smooth=True,
    ),
    Panel(
        "accuracy",
        "Accuracy",
        "training",
        "training",
        ("accuracy", "validation_accuracy"),
        1,
        by=_RANK,
        low=None,
        smooth=True,
    ),
    Panel(
        "learning_rate",
        "Learning rate",
        "training",
        "training",
        ("learning_rate",),
        1,
        by=_RANK,
        log_scale=True,
    ),
    Panel(
        "gradient_norm",
        "Gradient norm",
        "training",
        "training",
        ("gradient_norm",),
        1,
        by=_RANK,
        log_scale=True,
        log_first=True,
        smooth=True,
    ),
    # -- how fast it goes
    Panel(
        "throughput", "Throughput", "performance", "training", ("throughput_samples_per_sec",), 1, by=_RANK, smooth=True
    ),
    Panel(
        "token_throughput",
        "Token throughput",
        "performance",
        "training",
        ("throughput_tokens_per_sec",),
        2,
        by=_RANK,
        smooth=True,
    ),
    Panel(
        "step_time", "Step time", "performance", "training", ("batch_time",), 1, by=_RANK, log_scale=True, smooth=True
    ),
    Panel(
        "step_phases",
        "Step phases",
        "performance",
        "training",
        ("data_time", "transfer_time", "forward_time", "backward_time", "optimizer_time", "other_time"),
        1,
        "stacked",
        by=_RANK,
    ),
    Panel(
        "device_memory",
        "Framework memory",
        "performance",
        "training",
        ("memory_allocated_mb", "memory_reserved_mb"),
        2,
        by=_RANK,
    ),
    # -- the model itself, at its checkpoints
    Panel("benchmark_latency", "Model latency", "performance", "training", ("benchmark_latency_ms",), 2, by=_RANK),
    Panel(
        "benchmark_throughput",
        "Model throughput",
        "performance",
        "training",
        ("benchmark_items_per_sec",),
        3,
        by=_RANK,
    ),
    Panel(
        "benchmark_size",
        "Model memory and size",
        "performance",
        "training",
        ("benchmark_memory_mb", "benchmark_disk_mb"),
        3,
        by=_RANK,
    ),
    # -- the cards
    Panel("gpu_utilization", "GPU utilization", "gpu", "gpu", ("utilization_percent",), 1, by=_GPU, high=100.0),
    Panel("gpu_memory", "GPU memory", "gpu", "gpu", ("memory_percent",), 1, by=_GPU, high=100.0),
    Panel("gpu_power", "GPU power", "gpu", "gpu", ("power_draw_watts",), 1, by=_GPU, limit="power_limit_watts"),
    Panel(
        "gpu_temperature",
        "GPU temperature",
        "gpu",
        "gpu",
        ("temperature_celsius",),
        1,
        by=_GPU,
        limit="temperature_limit_celsius",
        low=None,
    ),
    Panel(
        "gpu_memory_used",
        "GPU memory used",
        "gpu",
        "gpu",
        ("memory_used_mb",),
        2,
        by=_GPU,
        limit="memory_total_mb",
    ),
    Panel(
        "gpu_clocks",
        "GPU clocks",
        "gpu",
        "gpu",
        ("graphics_clock_mhz",),
        2,
        by=_GPU,
        limit="graphics_clock_max_mhz",
    ),
    Panel("gpu_memory_clock", "Memory clock", "gpu", "gpu", ("memory_clock_mhz",), 3, by=_GPU),
    Panel(
        "gpu_memory_temperature",
        "Memory temperature",
        "gpu",
        "gpu",
        ("memory_temperature_celsius",),
        3,
        by=_GPU,
        low=None,
    ),
    Panel(
        "gpu_throttle_reasons",
        "Throttle reasons",
        "gpu",
        "gpu",
        ("throttle_reasons",),
        3,
        "states",
        by=_GPU,
    ),
    Panel(
        "gpu_throttle",
        "Throttled time",
        "gpu",
        "gpu",
        ("throttle_power_seconds", "throttle_thermal_seconds", "throttle_hardware_seconds"),
        2,
        by=_GPU,
    ),
    Panel("gpu_energy", "Energy", "gpu", "gpu", ("energy_joules",), 3, by=_GPU),
    Panel("gpu_fan", "Fan", "gpu", "gpu", ("fan_speed_percent",), 3, by=_GPU, high=100.0),
    Panel(
        "gpu_activity",
        "SM and tensor activity",
        "gpu",
        "gpu",
        ("sm_active_percent", "sm_occupancy_percent", "tensor_active_percent", "dram_active_percent"),
        2,
        by=_GPU,
        high=100.0,
    ),
    Panel("gpu_pcie", "PCIe traffic", "gpu", "gpu", ("pcie_rx_mb_s", "pcie_tx_mb_s"), 3, by=_GPU),
    Panel("gpu_nvlink", "NVLink traffic", "gpu", "gpu", ("nvlink_rx_mb_s", "nvlink_tx_mb_s"), 3, by=_GPU),
    Panel(
        "gpu_errors",
        "GPU errors",
        "gpu",
        "gpu",
        ("xid_errors_total", "ecc_uncorrected_total", "ecc_corrected_total"),
        3,
        by=_GPU,
    ),
    # -- the host
    Panel(
        "cpu",
        "CPU",
        "system",
        "system",
        ("cpu_usage_percent", "cpu_max_core_percent"),
        1,
        by=("host",),
        high=100.0,
    ),
    Panel("memory", "Memory", "system", "system", ("memory_usage_percent",), 1, by=("host",), high=100.0),
    Panel("disk_io", "Disk", "system", "system", ("disk_read_mb_s", "disk_write_mb_s"), 2, by=("host",)),
    Panel(
        "network",
        "Network",
        "system",
        "system",
        ("network_receive_mb_s", "network_send_mb_s"),
        2,
        by=("host",),
    ),
    Panel(
        "pressure",
        "Pressure",
        "system",
        "system",
        ("pressure_cpu_percent", "pressure_memory_percent", "pressure_io_percent"),
        2,
        by=("host",),
        high=100.0,
    ),
    Panel("load", "Load", "system", "system", ("load_1m",), 3, by=("host",), limit="cpu_count"),
    Panel("swap", "Swap", "system", "system", ("swap_usage_percent",), 3, by=("host",), high=100.0),
    Panel(
        "disk_space",
        "Disk space used",
        "system",
        "system",
        ("disk_usage_percent",),
        3,
        by=("host",),
        high=100.0,
    ),
    # -- the ranks' process trees
    Panel("process_cpu", "CPU per rank", "process", "process", ("cpu_percent",), 2, by=_RANK),
    Panel("process_memory", "Memory per rank", "process", "process", ("rss_mb",), 2, by=_RANK),
    Panel("process_gpu_memory", "GPU memory per rank", "process", "process", ("gpu_memory_mb",), 2, by=_RANK),
    Panel("process_gpu_sm", "SM utilization per rank", "process", "process", ("gpu_sm_percent",), 3, by=_RANK),
    Panel(
        "process_gpu_waiting",
        "Waiting GPUs per rank",
        "process",
        "process",
        ("gpu_waiting_percent",),
        2,
        by=_RANK,
        high=100.0,
    ),
    Panel("process_io", "Storage I/O per rank", "process", "process", ("read_mb_s", "write_mb_s"), 3, by=_RANK),
    Panel(
        "process_files",
        "Open files per rank",
        "process",
        "process",
        ("fd_count",),
        3,
        by=_RANK,
        limit="fd_limit",
    ),
)

PANELS: Registry[Panel] = Registry("panels", _OWN, Panel, name=attrgetter("id"), check=lambda panel: panel.check())
"""All panels, those of other packages last (docs/plugins.md). What is generated and shipped is made of `own`."""

BY_ID: dict[str, Panel] = {panel.id: panel for panel in _OWN}

SCHEDULED = ("learning_rate", "epoch")
"""Training metrics that are set beforehand: they have no noise that smoothing could take away."""


def overview() -> list[Panel]:
    """What every view shows first, in this order, where it was measured."""
    return [panel for panel in PANELS if panel.importance == 1]


def own_panel(name: str) -> Panel:
    """A training metric that no panel declares, such as one the user made up."""
    return Panel(
        f"own:{name}",
        name,
        "training",
        "training",
        (name,),
        3,
        by=_RANK,
        low=None,
        log_scale=True,
        smooth=name not in SCHEDULED,
    )


def levels_of(panel: Panel, conditions: Conditions) -> tuple[Level, ...]:
    """The values from which a panel is coloured: those of its first metric that has any, for all share their unit."""
    return next((found for name in panel.metrics if (found := conditions.levels_of(panel.table, name))), ())


def title_of(panel: Panel, names: Sequence[str], logged: Collection[str]) -> str:
    """Its own title; where only the validation of its first metric was `logged`, that name."""
    is_alone = len(names) == 1 and panel.without_validation != panel.metrics
    is_first = catalog.find_spelling(panel.table, panel.metrics[0], logged) is not None
    return names[0] if is_alone and not is_first else panel.title


def find_names(panel: Panel, logged: Iterable[str]) -> tuple[str, ...]:
    """Which of the names that were `logged` this panel draws: each of its metrics, as it is spelled there."""
    known = set(logged)
    found = (catalog.find_spelling(panel.table, metric, known) for metric in panel.metrics)
    return tuple(name for name in found if name is not None)
