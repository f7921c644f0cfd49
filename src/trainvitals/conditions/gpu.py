"""GPUs: heat, errors, memory, and whether they have something to do."""

from __future__ import annotations

from trainvitals.conditions.promql import GPU, correlation, known_for
from trainvitals.conditions.row import Colour, Condition, LiveRule, PrometheusRule, Threshold

HELD_PERCENT = 2
"""A GPU with more of its memory in use is held by somebody."""
LOW_USE_MINUTES = 30
"""Over which a GPU's mean utilization says that it is underused: shorter, and an evaluation would be."""
_MEAN_USE = f"mean(gpu[*].utilization_percent, {LOW_USE_MINUTES}m)"
OOM_WINDOW, OOM_CORRELATION, OOM_STEPS = "5m", 0.95, 100
"""Over which time memory must rise how straight, and after how many steps: start-up fills memory too."""

ROWS: tuple[Condition, ...] = (
    Condition(
        "gpu_temperature_high",
        "gpu",
        "GPUs that are too hot",
        "warning",
        "Check fans and air flow, or lower the power limit: nvidia-smi -i {gpu_index} -pl WATTS.",
        thresholds=(
            Threshold("gpu_temperature_celsius", 80, "°C", "a GPU above this is too hot"),
            Threshold("gpu_temperature_critical_celsius", 90, "°C", "a GPU above this is about to throttle"),
        ),
        live=LiveRule(
            "gpu[*].temperature_celsius > $gpu_temperature_celsius",
            "{gpu} is at {temperature_celsius:.0f} °C (warning above {threshold:g} °C)",
            wait="30s",
            clear="gpu[*].temperature_celsius < $gpu_temperature_celsius - 5",
            clear_wait="30s",
        ),
        prometheus=PrometheusRule(
            "<gpu.temperature_celsius> > $gpu_temperature_celsius", GPU + " is hot: {{ $value }} °C"
        ),
        findings=("gpu.hot",),
        colours=(Colour("gpu", "temperature_celsius", "gpu_temperature_celsius", "gpu_temperature_critical_celsius"),),
    ),
    Condition(
        "gpu_temperature_limit",
        "gpu",
        "GPUs at their throttle temperature",
        "critical",
        "Cooling has failed or is blocked. Stop the run if the temperature does not fall within minutes.",
        live=LiveRule(
            "gpu[*].temperature_celsius >= gpu[*].temperature_limit_celsius",
            "{gpu} is at {temperature_celsius:.0f} °C, at or above its {threshold:g} °C throttle limit",
            clear="gpu[*].temperature_celsius < gpu[*].temperature_limit_celsius - 5",
        ),
        prometheus=PrometheusRule(
            "<gpu.temperature_celsius> >= <gpu.temperature_limit_celsius>",
            GPU + " is at or above its throttle temperature",
        ),
        findings=("gpu.hot",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_memory_temperature_high",
        "gpu",
        "GPU memory that is too hot",
        "warning",
        "Check the cooling of the card's memory, or lower the power limit.",
        thresholds=(
            Threshold("gpu_memory_temperature_celsius", 95, "°C", "GPU memory above this is too hot"),
            Threshold("gpu_memory_temperature_critical_celsius", 105, "°C", "GPU memory above this throttles or fails"),
        ),
        colours=(
            Colour(
                "gpu",
                "memory_temperature_celsius",
                "gpu_memory_temperature_celsius",
                "gpu_memory_temperature_critical_celsius",
            ),
        ),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_memory_high",
        "gpu",
        "GPU memory nearly full",
        "info",
        "Fine if memory use is constant. If the run fails with out of memory, lower the batch size or use gradient "
        "accumulation.",
        thresholds=(
            Threshold("gpu_memory_percent", 90, "%", "GPU memory above this is nearly full"),
            Threshold("gpu_memory_critical_percent", 98, "%", "GPU memory above this is full"),
        ),
        live=LiveRule(
            "gpu[*].memory_percent > $gpu_memory_percent",
            "{gpu} uses {memory_percent:.0f} % of its memory",
            wait="60s",
            clear="gpu[*].memory_percent < $gpu_memory_percent - 5",
        ),
        prometheus=PrometheusRule(
            "<gpu.memory_percent> > ~gpu.memory_percent:$gpu_memory_percent", GPU + ": memory is nearly full"
        ),
        findings=("gpu.memory_full",),
        colours=(Colour("gpu", "memory_percent", "gpu_memory_percent", "gpu_memory_critical_percent"),),
    ),
    Condition(
        "gpu_throttled_heat",
        "gpu",
        "GPUs throttled by heat",
        "warning",
        "It runs slower than it could, and so does every rank that waits for it. Check its cooling: fans, air flow, "
        "neighbors in the rack.",
        thresholds=(
            Threshold("gpu_throttled_percent", 1, "%", "share of time a GPU is throttled"),
            Threshold("gpu_throttled_critical_percent", 10, "%", "the same, critical"),
        ),
        live=LiveRule(
            'contains(gpu[*].throttle_reasons, "thermal slowdown")',
            "{gpu} is throttled by heat ({throttle_reasons})",
            wait="5s",
            clear='not contains(gpu[*].throttle_reasons, "thermal slowdown")',
            clear_wait="60s",
        ),
        prometheus=PrometheusRule(
            'gpu_throttle_reason{reason=~".*thermal slowdown"} == 1', GPU + " is throttled by heat"
        ),
        findings=("gpu.throttle",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_throttled_power",
        "gpu",
        "GPUs throttled by the hardware",
        "warning",
        "The power supply is limiting or protecting itself. Check cables and power supply, or lower the power limit "
        "of all GPUs.",
        live=LiveRule(
            'contains(gpu[*].throttle_reasons, "power brake") '
            'or contains(gpu[*].throttle_reasons, "hardware slowdown")',
            "{gpu} is throttled by the hardware ({throttle_reasons})",
            wait="5s",
            clear='not contains(gpu[*].throttle_reasons, "power brake") '
            'and not contains(gpu[*].throttle_reasons, "hardware slowdown")',
            clear_wait="60s",
        ),
        prometheus=PrometheusRule(
            'gpu_throttle_reason{reason=~".*power brake|.*hardware slowdown"} == 1',
            GPU + " is throttled by the hardware",
        ),
        findings=("gpu.throttle",),
    ),
    Condition(
        "gpu_xid",
        "gpu",
        "Xid errors",
        "critical",
        "Look up the Xid in the events; reset the GPU or restart the machine.",
        live=LiveRule(
            "change(gpu[*].xid_errors_total, 10m) > 0",
            "{gpu}: Xid {xid:.0f}, {xid_meaning}",
            let={"xid": "gpu[*].xid_last"},
            advice="{xid_advice}",
        ),
        prometheus=PrometheusRule(
            "<gpu.xid_last> and increase(<gpu.xid_errors_total>[10m]) > 0", GPU + " reports Xid {{ $value }}"
        ),
        findings=("gpu.error",),
        colours=(Colour("gpu", "xid_errors_total", critical=1.0),),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_ecc_uncorrected",
        "gpu",
        "uncorrected memory errors",
        "critical",
        "Results since then may be wrong. Restart from the last checkpoint and reset the GPU; if it recurs, replace "
        "it.",
        live=LiveRule(
            "change(gpu[*].ecc_uncorrected_total, 10m) > 0",
            "{gpu}: {value:.0f} uncorrectable ECC memory errors",
        ),
        prometheus=PrometheusRule(
            "increase(<gpu.ecc_uncorrected_total>[10m]) > 0", GPU + ": uncorrectable ECC memory error"
        ),
        findings=("gpu.error",),
        colours=(Colour("gpu", "ecc_uncorrected_total", critical=1.0),),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_row_remap_failed",
        "gpu",
        "memory rows that could not be remapped",
        "critical",
        "Replace this GPU; do not start long runs on it.",
        live=LiveRule("gpu[*].row_remap_failed == 1", "{gpu}: a bad memory row could not be remapped"),
        prometheus=PrometheusRule("<gpu.row_remap_failed> == 1", GPU + ": a bad memory row could not be remapped"),
        findings=("gpu.error",),
        colours=(Colour("gpu", "row_remap_failed", critical=1.0),),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_row_remap_pending",
        "gpu",
        "memory rows waiting for a GPU reset",
        "warning",
        "Reset the GPU after the run: nvidia-smi --gpu-reset -i {gpu_index}.",
        live=LiveRule(
            "gpu[*].row_remap_pending == 1", "{gpu}: a bad memory row is waiting for a GPU reset", wait="10s"
        ),
        prometheus=PrometheusRule(
            "<gpu.row_remap_pending> == 1", GPU + ": a bad memory row is waiting for a GPU reset"
        ),
        findings=("gpu.error",),
        colours=(Colour("gpu", "row_remap_pending", 1.0),),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_rows_remapped",
        "gpu",
        "memory rows remapped after an uncorrected error",
        "warning",
        "Watch this GPU: if it recurs, the card is defective.",
        findings=("gpu.error",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_lost",
        "gpu",
        "lost GPUs",
        "critical",
        "Restart the machine (lost) or reset the GPU (reset required), then resume from the last checkpoint. "
        "If it recurs, replace the GPU.",
        live=LiveRule(
            'gpu[*].state == "lost" or gpu[*].state == "reset required"',
            "{gpu} is {state}",
            clear='gpu[*].state == "ok"',
        ),
        prometheus=PrometheusRule('gpu_state{state=~"lost|reset required"} == 1', GPU + " is {{ $labels.state }}"),
        findings=("gpu.lost",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_hung",
        "gpu",
        "unresponsive GPUs",
        "critical",
        "The driver does not return from calls to this GPU. Look for Xid errors in the kernel log. If it does not "
        "recover, stop the programs on it and reset it (nvidia-smi -i {gpu_index} --gpu-reset) or restart the machine.",
        live=LiveRule(
            'gpu[*].state == "unresponsive"',
            "{gpu} is not responding",
            wait="10s",
            clear='gpu[*].state == "ok"',
        ),
        prometheus=PrometheusRule('gpu_state{state="unresponsive"} == 1', GPU + " is not responding"),
        findings=("gpu.lost",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_fan_stopped",
        "gpu",
        "stopped fans on warm GPUs",
        "critical",
        "Stop the run before the GPU throttles or shuts down, and check the fan.",
        live=LiveRule(
            # Many cards stop their fans on purpose when cool.
            "gpu[*].fan_speed_percent == 0 and gpu[*].temperature_celsius > $gpu_temperature_celsius - 10",
            "{gpu}: fan stopped at {temperature_celsius:.0f} °C",
            clear="gpu[*].fan_speed_percent > 0 or gpu[*].temperature_celsius < $gpu_temperature_celsius - 20",
        ),
        prometheus=PrometheusRule(
            "<gpu.fan_speed_percent> == 0 and <gpu.temperature_celsius> > $gpu_temperature_celsius - 10",
            GPU + ": fan stopped",
        ),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_idle",
        "gpu",
        "idle GPUs and what they cost",
        "warning",
        "Find what the run is waiting for (data, a lock, another rank): trainvitals top, or py-spy dump on its "
        "process. Release unused GPUs.",
        thresholds=(
            Threshold("gpu_idle_percent", 5, "%", "a GPU below this utilization is idle"),
            Threshold("gpu_idle_time_percent", 10, "%", "share of time GPUs were idle"),
            Threshold("gpu_idle_time_high_percent", 30, "%", "the same, for a warning"),
        ),
        live=LiveRule(
            f"max(gpu[*].utilization_percent, 10m) < $gpu_idle_percent and gpu[*].memory_percent > {HELD_PERCENT} "
            "and gpu[*].held_by_run == 1",
            "{gpu} has been idle for over 10 minutes while the run holds it",
            wait="5m",
            clear="gpu[*].utilization_percent >= $gpu_idle_percent",
        ),
        prometheus=PrometheusRule(
            "max_over_time(<gpu.utilization_percent>[10m]) < ~gpu.utilization_percent:$gpu_idle_percent"
            f" and <gpu.memory_percent> > ~gpu.memory_percent:{HELD_PERCENT}",
            GPU + " has been idle for over 10 minutes while a process holds it",
        ),
        findings=("gpu.waste",),
    ),
    Condition(
        "gpu_oversized",
        "gpu",
        "more or larger GPUs than needed",
        "info",
        "Try the next run with fewer or smaller GPUs, or lower their power limit (nvidia-smi --power-limit): a GPU "
        "that waits loses little speed.",
        thresholds=(Threshold("gpu_enough_percent", 80, "%", "mean utilization that fewer GPUs may have"),),
        findings=("gpu.oversized",),
    ),
    Condition(
        "gpu_low_use",
        "gpu",
        "underused GPUs, and why",
        "info",
        "Find what it is waiting for: trainvitals runs show latest. Profile one step; use trainvitals.watch to time "
        "its phases; try a larger batch.",
        thresholds=(
            Threshold("gpu_low_use_percent", 30, "%", "a GPU with a lower mean utilization is underused"),
            Threshold("gpu_low_use_p95_percent", 70, "%", "a GPU almost always below this utilization is underused"),
        ),
        live=LiveRule(
            f"{_MEAN_USE} < $gpu_low_use_percent and gpu[*].memory_percent > {HELD_PERCENT} "
            "and gpu[*].held_by_run == 1",
            f"{{gpu}}: {{mean_use:.0f}} % utilization over {LOW_USE_MINUTES} minutes{{waste}}",
            wait="5m",
            clear=f"{_MEAN_USE} > $gpu_low_use_percent + 10",
            let={"mean_use": _MEAN_USE, "gpu_name": "gpu[*].gpu_name"},
        ),
        prometheus=PrometheusRule(
            f"avg_over_time(<gpu.utilization_percent>[{LOW_USE_MINUTES}m])"
            " < ~gpu.utilization_percent:$gpu_low_use_percent"
            f" and <gpu.memory_percent> > ~gpu.memory_percent:{HELD_PERCENT}",
            GPU + " is underused",
        ),
        findings=("gpu.low_use",),
    ),
    Condition(
        "launch_bound",
        "gpu",
        "GPUs that run kernels too small to fill them",
        "warning",
        "Utilization only says that some kernel runs. Use a larger batch, torch.compile(model, mode='reduce-overhead') "
        "or CUDA graphs, fused optimizers (fused=True), and fewer small operations and .item() calls per step.",
        thresholds=(
            Threshold("sm_active_low_percent", 30, "%", "SMs that are active less, on a busy GPU", below=True),
        ),
        findings=("launch.bound",),
    ),
    Condition(
        "gpu_link_narrow",
        "gpu",
        "GPUs with fewer or slower PCIe lanes than they can have",
        "warning",
        "Check with nvidia-smi -q -i {gpu_index} and lspci -vv, reseat the card or its riser, and look at the slot's "
        "settings in the firmware: transfers to and from this GPU are slower than they need be.",
        live=LiveRule(
            # Links get slower while idle, to save power.
            "gpu[*].pcie_link_width < gpu[*].pcie_link_width_max and gpu[*].utilization_percent > 80",
            "{gpu} uses {pcie_link_width:.0f} PCIe lanes of {pcie_link_width_max:.0f} under load",
            wait="60s",
            clear="gpu[*].pcie_link_width >= gpu[*].pcie_link_width_max",
        ),
        findings=("gpu.link",),
        speaks_of_node=True,
    ),
    Condition(
        "gpu_clock_low",
        "gpu",
        "GPUs with low clocks for no reported reason",
        "warning",
        "Look for clocks that somebody set (nvidia-smi -q -d CLOCK -i {gpu_index}; reset them with nvidia-smi -i "
        "{gpu_index} --reset-gpu-clocks), and for a power profile of the machine that limits them.",
        thresholds=(
            Threshold("gpu_clock_percent", 75, "%", "a clock below this share of its maximum, under load", below=True),
            Threshold("gpu_clock_below_peers_percent", 5, "%", "a clock this far below that of GPUs of the same model"),
        ),
        findings=("gpu.clock",),
        speaks_of_node=True,
    ),
    Condition(
        "batch_small",
        "run",
        "batches that could be larger",
        "info",
        "Try it, with a learning rate that grows with the batch, and compare the loss at equal samples: the gain is in "
        "samples per second.",
        thresholds=(
            Threshold("batch_memory_percent", 42, "%", "peak GPU memory below which twice the batch fits", below=True),
            Threshold("batch_gain_percent", 5, "%", "a smaller gain is not worth a finding", below=True),
        ),
        findings=("batch.small",),
    ),
    Condition(
        "gpu_precision",
        "gpu",
        "GPUs that do not use their tensor cores",
        "info",
        "Train in bf16 (torch.autocast('cuda', torch.bfloat16)), or let FP32 matrices use TF32: "
        "torch.set_float32_matmul_precision('high').",
        thresholds=(
            Threshold("tensor_idle_percent", 1, "%", "tensor cores that are active less are not used", below=True),
            Threshold("fp32_busy_percent", 20, "%", "while the FP32 pipe is active more than this"),
        ),
        findings=("gpu.precision",),
    ),
    Condition(
        "gpu_memory_leak",
        "rank",
        "tensors that are never freed",
        "warning",
        "Something keeps tensors alive: a list of losses without .item() or .detach(), a retained graph, a cache, "
        "hooks registered repeatedly.",
        thresholds=(Threshold("gpu_leak_percent", 5, "%", "tensor memory that grows by more is a leak"),),
        live=LiveRule(
            "leaking(memory_allocated_mb, $gpu_leak_percent / 100) > 0",
            "{Participant}: GPU memory grows with every step, now {memory_allocated_mb:.0f} MB",
        ),
        findings=("gpu.memory_leak",),
        noticed_by_watch=True,
    ),
    Condition(
        "gpu_memory_fragmented",
        "rank",
        "fragmented GPU memory",
        "info",
        "If memory is tight: PYTORCH_ALLOC_CONF=expandable_segments:True, or batches of the same shape.",
        thresholds=(
            Threshold("gpu_fragmentation_percent", 20, "%", "share of GPU memory reserved by the allocator but unused"),
        ),
        findings=("gpu.fragmentation",),
    ),
    Condition(
        "gpu_oom_soon",
        "gpu",
        "GPU memory about to run out",
        "critical",
        "Save a checkpoint now. Then look for tensors kept alive (losses without .item()), or lower the batch size.",
        thresholds=(
            Threshold("oom_minutes", 30, "min", "memory that will be full within this time is about to run out"),
        ),
        live=LiveRule(
            f"correlation(gpu[*].memory_used_mb, {OOM_WINDOW}) > {OOM_CORRELATION} "
            f"and slope(gpu[*].memory_used_mb, {OOM_WINDOW}) > 0 and "
            "(gpu[*].memory_total_mb - gpu[*].memory_used_mb) "
            f"/ slope(gpu[*].memory_used_mb, {OOM_WINDOW}) < $oom_minutes * 60 "
            f"and max(rank[*].step) > {OOM_STEPS}",
            "{gpu} will run out of memory in about {minutes:.0f} minutes at this rate",
            wait="60s",
            clear=f"correlation(gpu[*].memory_used_mb, {OOM_WINDOW}) < 0.5",
            let={
                "minutes": "(gpu[*].memory_total_mb - gpu[*].memory_used_mb) "
                f"/ slope(gpu[*].memory_used_mb, {OOM_WINDOW}) / 60"
            },
        ),
        prometheus=PrometheusRule(
            f"deriv(<gpu.memory_used_mb>[{OOM_WINDOW}])"
            " > (<gpu.memory_total_mb> - <gpu.memory_used_mb>) / (60 * $oom_minutes)"
            f" and {known_for('<gpu.memory_used_mb>', '1m')}"
            f" and {correlation('<gpu.memory_used_mb>', OOM_WINDOW)} > {OOM_CORRELATION}"
            f" and on (host) max by (host) (training_steps_total) > {OOM_STEPS}",
            GPU + " will run out of memory at this rate",
        ),
        findings=("gpu.memory_forecast",),
    ),
)
