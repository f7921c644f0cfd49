"""The names of other exporters, so that dashboards made for them work unchanged.

`dcgm` has those of NVIDIA's DCGM exporter's default list, as far as they are measured here; `nvidia_smi` those of
nvidia_gpu_exporter that its own dashboards ask for. What is missing is listed in docs/prometheus.md. Labels are as
theirs. Only NVIDIA's and simulated GPUs: nobody's dashboard asks for others.
Tested in tests/exporters/test_families.py.
"""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from trainvitals.exporters.families import FamilySeries, MetricsSnapshot, clean, gpu_label
from trainvitals.exporters.labels import Labels, share
from trainvitals.journal.encoding import number
from trainvitals.newest import Thing


class _Row(NamedTuple):
    name: str
    metric: str
    factor: float
    help: str
    kind: str = "gauge"


_DCGM: tuple[_Row, ...] = (
    _Row("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz", 1, "SM clock (MHz)"),
    _Row("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_mhz", 1, "Memory clock (MHz)"),
    _Row("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", 1, "Core temperature (C)"),
    _Row("DCGM_FI_DEV_MEMORY_TEMP", "memory_temperature_celsius", 1, "Memory temperature (C)"),
    _Row("DCGM_FI_DEV_POWER_USAGE", "power_draw_watts", 1, "Power draw (W)"),
    _Row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_joules", 1000, "Energy since boot (mJ)", "counter"),
    _Row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replay_total", 1, "PCIe retries", "counter"),
    _Row("DCGM_FI_DEV_GPU_UTIL", "utilization_percent", 1, "Utilization (%)"),
    _Row("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_utilization_percent", 1, "Memory utilization (%)"),
    _Row("DCGM_FI_DEV_ENC_UTIL", "encoder_percent", 1, "Encoder utilization (%)"),
    _Row("DCGM_FI_DEV_DEC_UTIL", "decoder_percent", 1, "Decoder utilization (%)"),
    _Row("DCGM_FI_DEV_XID_ERRORS", "xid_last", 1, "Most recent Xid error"),
    _Row("DCGM_FI_DEV_FB_USED", "memory_used_mb", 1, "Framebuffer used (MiB)"),
    _Row("DCGM_FI_DEV_FB_FREE", "memory_free_mb", 1, "Framebuffer free (MiB)"),
    _Row("DCGM_FI_DEV_FB_RESERVED", "memory_reserved_mb", 1, "Framebuffer reserved (MiB)"),
    _Row("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows_uncorrected_total", 1, "Rows remapped", "counter"),
    _Row("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "remapped_rows_corrected_total", 1, "Rows remapped", "counter"),
    _Row("DCGM_FI_DEV_ROW_REMAP_FAILURE", "row_remap_failed", 1, "1 if a row could not be remapped"),
    _Row("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "ecc_corrected_total", 1, "Single-bit ECC errors", "counter"),
    _Row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "ecc_uncorrected_total", 1, "Double-bit ECC errors", "counter"),
    _Row("DCGM_FI_DEV_POWER_VIOLATION", "throttle_power_seconds", 1e9, "Time throttled by power (ns)", "counter"),
    _Row("DCGM_FI_DEV_THERMAL_VIOLATION", "throttle_thermal_seconds", 1e9, "Time throttled by heat (ns)", "counter"),
    _Row("DCGM_FI_DEV_FAN_SPEED", "fan_speed_percent", 1, "Fan speed (%)"),
    _Row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "utilization_percent", 0.01, "Time in which a kernel ran (ratio)"),
    _Row("DCGM_FI_PROF_SM_ACTIVE", "sm_active_percent", 0.01, "SM activity (ratio)"),
    _Row("DCGM_FI_PROF_SM_OCCUPANCY", "sm_occupancy_percent", 0.01, "SM occupancy (ratio)"),
    _Row("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "tensor_active_percent", 0.01, "Tensor pipe activity (ratio)"),
    _Row("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_percent", 0.01, "Memory activity (ratio)"),
    _Row("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "fp64_active_percent", 0.01, "FP64 pipe activity (ratio)"),
    _Row("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32_active_percent", 0.01, "FP32 pipe activity (ratio)"),
    _Row("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "fp16_active_percent", 0.01, "FP16 pipe activity (ratio)"),
    _Row("DCGM_FI_PROF_PCIE_TX_BYTES", "pcie_tx_mb_s", 1024.0**2, "Sent over PCIe (B/s)"),
    _Row("DCGM_FI_PROF_PCIE_RX_BYTES", "pcie_rx_mb_s", 1024.0**2, "Received over PCIe (B/s)"),
    _Row("DCGM_FI_PROF_NVLINK_TX_BYTES", "nvlink_tx_mb_s", 1024.0**2, "Sent over NVLink (B/s)"),
    _Row("DCGM_FI_PROF_NVLINK_RX_BYTES", "nvlink_rx_mb_s", 1024.0**2, "Received over NVLink (B/s)"),
)  # fmt: skip

# Their name of a throttle reason -> ours.
_REASONS = {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application clocks",
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware slowdown",
    "hw_thermal_slowdown": "hardware thermal slowdown",
    "hw_power_brake_slowdown": "hardware power brake",
    "sw_thermal_slowdown": "thermal slowdown",
    "sync_boost": "sync boost",
}
_RECOVERY = {"none": 0.0, "reset": 1.0, "reboot": 2.0, "drain": 3.0, "drain and reset": 4.0}

_SMI: tuple[_Row, ...] = (
    _Row("nvidia_smi_utilization_gpu_ratio", "utilization_percent", 0.01, "utilization.gpu"),
    _Row("nvidia_smi_utilization_memory_ratio", "memory_utilization_percent", 0.01, "utilization.memory"),
    _Row("nvidia_smi_utilization_encoder_ratio", "encoder_percent", 0.01, "utilization.encoder"),
    _Row("nvidia_smi_utilization_decoder_ratio", "decoder_percent", 0.01, "utilization.decoder"),
    _Row("nvidia_smi_memory_used_bytes", "memory_used_mb", 1024.0**2, "memory.used"),
    _Row("nvidia_smi_memory_free_bytes", "memory_free_mb", 1024.0**2, "memory.free"),
    _Row("nvidia_smi_memory_total_bytes", "memory_total_mb", 1024.0**2, "memory.total"),
    _Row("nvidia_smi_memory_reserved_bytes", "memory_reserved_mb", 1024.0**2, "memory.reserved"),
    _Row("nvidia_smi_temperature_gpu", "temperature_celsius", 1, "temperature.gpu"),
    _Row("nvidia_smi_temperature_memory", "memory_temperature_celsius", 1, "temperature.memory"),
    _Row("nvidia_smi_power_draw_watts", "power_draw_watts", 1, "power.draw"),
    _Row("nvidia_smi_power_limit_watts", "power_limit_watts", 1, "power.limit"),
    _Row("nvidia_smi_enforced_power_limit_watts", "power_limit_watts", 1, "enforced.power.limit"),
    _Row("nvidia_smi_energy_joules", "energy_joules", 1, "Energy since the driver was loaded", "counter"),
    _Row("nvidia_smi_clocks_current_graphics_clock_hz", "graphics_clock_mhz", 1e6, "clocks.current.graphics"),
    _Row("nvidia_smi_clocks_current_sm_clock_hz", "sm_clock_mhz", 1e6, "clocks.current.sm"),
    _Row("nvidia_smi_clocks_current_memory_clock_hz", "memory_clock_mhz", 1e6, "clocks.current.memory"),
    _Row("nvidia_smi_clocks_max_graphics_clock_hz", "graphics_clock_max_mhz", 1e6, "clocks.max.graphics"),
    _Row("nvidia_smi_clocks_max_memory_clock_hz", "memory_clock_max_mhz", 1e6, "clocks.max.memory"),
    _Row("nvidia_smi_fan_speed_ratio", "fan_speed_percent", 0.01, "fan.speed"),
    _Row("nvidia_smi_pstate", "performance_state", 1, "pstate"),
    _Row("nvidia_smi_index", "gpu_index", 1, "index"),
    _Row("nvidia_smi_pcie_link_gen_current", "pcie_link_generation", 1, "pcie.link.gen.current"),
    _Row("nvidia_smi_pcie_link_width_current", "pcie_link_width", 1, "pcie.link.width.current"),
    _Row("nvidia_smi_pcie_throughput_rx_bytes_per_second", "pcie_rx_mb_s", 1024.0**2, "Received over PCIe"),
    _Row("nvidia_smi_pcie_throughput_tx_bytes_per_second", "pcie_tx_mb_s", 1024.0**2, "Sent over PCIe"),
    _Row("nvidia_smi_xid_errors", "xid_errors_total", 1, "Xid errors", "counter"),
    _Row("nvidia_smi_ecc_errors_corrected_volatile", "ecc_corrected_total", 1, "Corrected ECC errors", "counter"),
    _Row("nvidia_smi_ecc_errors_uncorrected_volatile", "ecc_uncorrected_total", 1, "Uncorrected ECC errors", "counter"),
    _Row("nvidia_smi_remapped_rows_correctable", "remapped_rows_corrected_total", 1, "remapped_rows.correctable"),
    _Row("nvidia_smi_remapped_rows_uncorrectable", "remapped_rows_uncorrected_total", 1, "remapped_rows.uncorrectable"),
    _Row("nvidia_smi_remapped_rows_pending", "row_remap_pending", 1, "remapped_rows.pending"),
    _Row("nvidia_smi_remapped_rows_failure", "row_remap_failed", 1, "remapped_rows.failure"),
    _Row("nvidia_smi_gpu_recovery_action", "recovery_action", 1, "gpu_recovery_action"),
    *(
        _Row(f"nvidia_smi_clocks_{prefix}_reasons_{name}", f"held by {reason}", 1, f"clocks_{prefix}_reasons.{name}")
        for prefix in ("event", "throttle")  # as newer and as older drivers call them
        for name, reason in _REASONS.items()
    ),
)  # fmt: skip


_IMITATED = ("nvidia", "simulated")
"""The exporters that are imitated know NVIDIA's GPUs only; simulated ones stand in for them."""


def build(snapshot: MetricsSnapshot, wanted: frozenset[str]) -> list[Metric]:
    """The families of each exporter that is to be imitated. They do not know GPUs that have nothing but a state."""
    gpus = [
        thing
        for thing in snapshot.things
        if thing.table == "gpu"
        and thing.labels.get("vendor") in _IMITATED
        and "gpu_uuid" in thing.labels
        and thing.values.keys() - {"state"}
    ]
    values = [_values(thing) for thing in gpus]
    found: list[Metric] = []
    if "dcgm" in wanted:
        found += _imitate(_DCGM, [_dcgm_labels(thing, snapshot) for thing in gpus], values)
    if "nvidia_smi" in wanted:
        uuids = [clean(str(thing.labels["gpu_uuid"]).lower().removeprefix("gpu-")) for thing in gpus]
        found += _imitate(_SMI, [share(("uuid",), (uuid,)) for uuid in uuids], values)
        facts = [snapshot.facts_of(thing.labels) for thing in gpus]
        versions = [name for name in ("cuda_version", "driver_version") if any(name in known for known in facts)]
        info = FamilySeries("nvidia_smi_gpu_info", "GPU name and identifiers", ("uuid", "name", "index", *versions))
        for uuid, thing, known in zip(uuids, gpus, facts, strict=True):
            about = (clean(thing.labels.get("gpu_name", "")), str(thing.labels.get("gpu_index", "")))
            info.add((uuid, *about, *(clean(known.get(name, "")) for name in versions)))
        found.append(info.family)
    return found


def _values(thing: Thing) -> dict[str, float]:
    values = {name: value for name, item in thing.values.items() if (value := number(item)) is not None}
    reasons = thing.values.get("throttle_reasons")
    if reasons is not None:
        held = {reason.strip() for reason in str(reasons).split(",")}
        values |= {f"held by {reason}": float(reason in held) for reason in _REASONS.values()}
    action = _RECOVERY.get(str(thing.values.get("recovery_action")))
    if action is not None:
        values["recovery_action"] = action
    index = thing.labels.get("gpu_index")
    if isinstance(index, int):
        values["gpu_index"] = index
    if "sm_clock_mhz" not in values and "graphics_clock_mhz" in values:
        values["sm_clock_mhz"] = values["graphics_clock_mhz"]  # one clock domain since Pascal
    used, total = values.get("memory_used_mb"), values.get("memory_total_mb")
    if used is not None and total is not None:
        values["memory_free_mb"] = total - used - values.get("memory_reserved_mb", 0.0)
    return values


def _imitate(rows: tuple[_Row, ...], labels: list[Labels], values: list[dict[str, float]]) -> list[Metric]:
    found = []
    for row in rows:
        # Theirs are exposed as counters without `_total`, which only a plain family can be.
        kind = "gauge" if row.name.startswith("DCGM") else row.kind
        family = Metric(row.name, row.help, kind)
        name = f"{row.name}_total" if kind == "counter" else row.name
        family.samples = [
            Sample(name, about, known[row.metric] * row.factor)
            for about, known in zip(labels, values, strict=True)
            if row.metric in known
        ]
        if family.samples:
            found.append(family)
    return found


def _dcgm_labels(thing: Thing, snapshot: MetricsSnapshot) -> Labels:
    index = gpu_label(thing.labels)
    labels = {
        "gpu": index,
        "UUID": clean(thing.labels["gpu_uuid"]),
        "device": f"nvidia{index}",
        "modelName": clean(thing.labels.get("gpu_name", "")),
        "Hostname": snapshot.host,
    }
    if "mig_index" in thing.labels:
        labels |= {"gpu": str(thing.labels.get("gpu_index", "")), "GPU_I_ID": str(thing.labels["mig_index"])}
    facts = snapshot.facts_of(thing.labels)
    if "driver_version" in facts:
        labels["DCGM_FI_DRIVER_VERSION"] = clean(facts["driver_version"])
    return share(tuple(labels), tuple(labels.values()))
