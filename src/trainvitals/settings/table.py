"""Every setting once: its attribute, default, kind and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, overload

from trainvitals.errors import SettingError
from trainvitals.settings.addresses import ADDRESSES, HOSTS, PAGES, Address
from trainvitals.settings.kinds import (
    FOLDER,
    GPUS,
    LISTS,
    NAME,
    NUMBERS,
    OBJECTS,
    PAIRS,
    PATH,
    SWITCH,
    TEXT,
    TEXTS,
    Kind,
    choice,
    choices,
    duration,
    integer,
    number,
    size,
)
from trainvitals.settings.secrets import LINK, SECRET, STORE, TARGET, TARGETS, TRACKING_URI

T = TypeVar("T")

PREFIX = "TRAINVITALS_"
SECTIONS = ("alerts", "price", "prometheus", "wandb", "watch", "web")
"""Of the file: the first part of an attribute is the section of its setting."""


class Setting(Generic[T]):
    """One row of the table. Read on a `Settings` object it is the value; read on the class it is the row."""

    __slots__ = ("attribute", "default", "help", "kind", "name")

    def __init__(self, default: T, kind: Kind[T], help: str) -> None:
        self.default = default
        self.kind = kind
        self.help = help
        self.name = self.attribute = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        section, _, key = attribute.partition("_")
        self.attribute = attribute
        self.name = f"{section}.{key}" if section in SECTIONS else attribute

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Settings, owner: type) -> T: ...
    def __get__(self, instance: Settings | None, owner: type) -> Setting[T] | T:
        if instance is None:
            return self
        value: T = instance._rows[self.attribute].value
        return value

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper().replace(".", "_")

    @property
    def flag(self) -> str:
        """Its flag, where a command has one."""
        return "--" + self.name.replace("_", "-").replace(".", "-")


def optional(kind: Kind[T], help: str, *, word: str = "none") -> Setting[T | None]:
    """A setting that may be unset: its default is None, and `word` means None in a file or a variable."""

    def parse(value: object) -> T | None:
        return None if isinstance(value, str) and value.strip().lower() == word else kind.parse(value)

    def format(value: T | None) -> str:
        return word if value is None else kind.format(value)

    return Setting(None, Kind(kind.word, parse, format), help)


class Row(NamedTuple):
    """The effective value of one setting, the same as text, and where it came from."""

    name: str
    value: Any
    text: str
    origin: str
    where: str = ""
    """Where another process can read it, if it contains a secret and so is not passed on (`find_where`)."""


# fmt: off
_CAPTURE_ENV = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS",
    "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
    "CUBLAS_WORKSPACE_CONFIG", "NCCL_*", "RCCL_*", "GLOO_*", "UCX_*", "FI_PROVIDER",
    "PYTORCH_*", "TORCH_*", "TORCHELASTIC_*", "XLA_*", "JAX_*", "ACCELERATE_*",
    "TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM",
    "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_STEP_ID",
    "SLURM_NTASKS", "SLURM_NNODES", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT",
    "PBS_JOBID", "LSB_JOBID", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "PYTHONHASHSEED", "PYTHONPATH",
    "LD_PRELOAD",
)
# fmt: on


class Settings:
    """The table, and the effective values. Made by `resolve`; never changes.

    A key in a section of the file has a dot in its name: the attribute `alerts_cooldown` is `alerts.cooldown`.
    """

    # Where things are
    dir = Setting(Path("./trainvitals_runs"), PATH, "Folder of all runs")
    project = Setting("default", NAME, "Project of a run: a subfolder of `dir`")
    shared = Setting(False, SWITCH, "Use the umask for run files instead of 0700/0600")
    rack = optional(TEXT, "Rack of this machine, for grouping on the fleet page; none: the pod's label `rack`")

    # What is measured, and how often
    interval = Setting(1.0, duration(0.05), "Sampling interval; for the ranks' processes at least 2s")
    gpu_interval = optional(duration(0.05), "Sampling interval of GPUs; none: `interval`")
    gpus = optional(GPUS, "GPUs to monitor, by index or UUID", word="all")
    sources = optional(TEXTS, "Sources to sample, by name", word="all")
    openmetrics = Setting(
        (),
        PAGES,
        "Metrics pages to scrape into the run, such as DCGM exporter; with a password: env:NAME; Ray's: `ray`",
    )
    kubelet_socket = Setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        PATH,
        "Kubelet socket that reports which pod has which GPU (docs/schedulers.md)",
    )
    simulate_gpus = Setting(0, integer(0, 64), "Simulated GPUs to add, always labelled as such")

    # How the training process behaves
    strict = Setting(False, SWITCH, "Raise instead of warning once, for your own tests")
    rank_zero_only = Setting(False, SWITCH, "Only rank 0 writes")
    summary = Setting(True, SWITCH, "Print a short summary when a run ends")

    autostart = Setting(True, SWITCH, "Under `trainvitals run`, watch trainings that do not call `watch`")

    capture_trackers = Setting(
        True,
        SWITCH,
        "Under `trainvitals run`, receive what is logged with W&B or MLflow if no server is set up for them, and "
        "follow event files of TensorBoard and tables of CSVLogger",
    )

    # What the program prints
    console = Setting(
        "file",
        choice("file", "tee", "off"),
        "Keep the output: `file` if it goes to a file; `tee` also otherwise, by wrapping `sys.stdout`; or `off`",
    )
    console_size_mb = Setting(16.0, size("MB", 0.1), "Maximum size of a rank's kept output; the oldest is dropped")

    # Images, tables, texts and histograms that the training logs
    media_file_mb = Setting(16.0, size("MB", 0.01), "Maximum size of a media file; larger ones are skipped")
    media_size_mb = Setting(1024.0, size("MB", 0.1), "Maximum size of a run's media; anything beyond is skipped")

    # What `watch` looks at, counted in optimizer steps
    watch_gradients_every = Setting(1, integer(0, 10**9), "Steps between gradient norms; 0: never")
    watch_layers_every = Setting(100, integer(0, 10**9), "Steps between layer statistics; 0: never")
    watch_track_layers = Setting((), TEXTS, "Layers to measure, by name or pattern; none: all")
    watch_max_layers = Setting(200, integer(1, 100_000), "Maximum number of layers; beyond that, modules are merged")
    watch_histograms_every = Setting(0, integer(0, 10**9), "Steps between histograms of every layer; 0: never")
    watch_activations = Setting((), TEXTS, "Modules whose outputs are measured, by name or pattern")
    watch_activations_every = Setting(100, integer(0, 10**9), "Steps between activation statistics; 0: never")
    watch_memory_every = Setting(10, integer(0, 10**9), "Steps between memory readings; 0: never")
    watch_count_flops = Setting(False, SWITCH, "Count the FLOPs of one forward pass, for FLOP/s and MFU")
    watch_budget_percent = Setting(
        0.5,
        number(0),
        "Share of the training's time for measuring phases, gradients, layers, activations and memory together; what "
        "takes more is measured less often; 0: no limit",
    )

    # The agent
    agent = Setting(True, SWITCH, "Start the agent if none runs on this machine")
    agent_idle_timeout = Setting(60.0, duration(), "The agent exits after this time without a run")
    stall_after = Setting(
        60.0,
        duration(1),
        "A rank is stalled after this time without a step, or a third of it if it is idle or its long pauses are "
        "known; later if its pauses are long",
    )
    stack_dumps = Setting(True, SWITCH, "Record the Python stack of every thread of a stalled rank")
    hang_signal = Setting(True, SWITCH, "Send a hung rank a signal for its stacks if py-spy cannot read them")

    # Alerts
    alerts_enabled = Setting(True, SWITCH, "Evaluate rules and send notifications")
    alerts_notify = Setting((), ADDRESSES, "Notification channels: Apprise URLs, env:NAME ... (docs/alerts.md)")
    alerts_rules = Setting((), OBJECTS, "Your own rules (docs/alerts.md)")
    alerts_thresholds = Setting(
        {}, NUMBERS, "Thresholds to change, for alerts, findings, colours, `watch` and Prometheus rules (docs/rules.md)"
    )
    alerts_disable = Setting((), TEXTS, "Built-in rules to disable, by name; `all`")
    alerts_min_severity = Setting(
        "warning", choice("info", "warning", "critical"), "Minimum severity to send; lower ones are only recorded"
    )
    alerts_cooldown = Setting(300.0, duration(), "Minimum time between two notifications of one rule")
    alerts_repeat = optional(duration(1), "Repeat the notification after this time while the alert is active")
    alerts_escalate_after = optional(duration(1), "Escalate if not acknowledged (`alerts ack`) within this time")
    alerts_escalate_notify = Setting((), TEXTS, "Channels to escalate to, by name; they get nothing else")
    alerts_actions = Setting({}, LISTS, "Actions by rule: stop, checkpoint, dump_stacks (docs/alerts.md)")
    alerts_kill_after = optional(duration(), "Kill a run (SIGKILL) that does not stop within this time; none: never")
    alerts_checkpoint_signal = Setting("SIGUSR1", TEXT, "Signal that makes your training save a checkpoint")
    alerts_baseline = Setting(
        "early", TEXT, "Baseline of the rules: `early` (the start of this run), `best` of the project, or a run"
    )
    alerts_link = optional(LINK, "Address of the dashboard to link in notifications")

    # Prometheus and the like: docs/prometheus.md
    prometheus_port = optional(integer(1, 65535), "Port to serve metrics on for Prometheus; none: not served")
    prometheus_address = Setting(
        "127.0.0.1", TEXT, "Address to serve on; any but loopback requires a token or a password"
    )
    prometheus_token = optional(SECRET, "Bearer token required from scrapes")
    prometheus_password = optional(SECRET, "`user:password` required from scrapes")
    prometheus_tls_certificate = optional(PATH, "TLS certificate (PEM)")
    prometheus_tls_key = optional(PATH, "Private key of the TLS certificate (PEM)")
    prometheus_tls_client_ca = optional(
        PATH, "Certificate authority (PEM) of clients; clients without its certificate are refused"
    )
    prometheus_names = Setting(
        "mb", choice("mb", "base"), "Units in names: mb (`gpu_memory_used_mb`) or base (`gpu_memory_used_bytes`)"
    )
    prometheus_compat = Setting((), choices("dcgm", "nvidia_smi"), "Other exporters whose names are also served")
    prometheus_user_metrics = Setting(
        "label",
        choice("label", "name", "both"),
        "Your own metrics by label (training_metric), by sanitized name, or both",
    )
    prometheus_max_user_series = Setting(2000, integer(0, 1_000_000), "Maximum number of series of your own metrics")
    prometheus_keep_ended = Setting(
        600.0, duration(), "How long the state, last values and cause of an ended run are served and pushed"
    )
    prometheus_host = optional(TEXT, "Label `host` of served and pushed metrics; none: the machine's name")
    prometheus_labels = Setting({}, PAIRS, "Labels to add to pushed metrics, such as a cluster")
    prometheus_remote_write = optional(TARGET, "Server to push metrics to by remote write")
    prometheus_pushgateway = optional(TARGET, "Pushgateway to push runs to")
    prometheus_otlp = optional(TARGET, "OpenTelemetry endpoint (OTLP over HTTP, `.../v1/metrics`)")
    prometheus_push_interval = Setting(15.0, duration(1), "Push interval")
    prometheus_push_native_histograms = Setting(
        False, SWITCH, "Push step durations by remote write as native histograms; the server must support them"
    )
    prometheus_push_headers = Setting(
        {}, PAIRS, "Headers for pushes, such as a tenant (X-Scope-OrgID); `${env:NAME}` in a value is expanded"
    )
    prometheus_push_token = optional(SECRET, "Bearer token for pushes (Pushgateway: `user:password`)")
    prometheus_push_tls_certificate = optional(PATH, "Client certificate (PEM), for servers that require one")
    prometheus_push_tls_key = optional(PATH, "Private key of that certificate (PEM); none: in the same file")
    prometheus_push_tls_ca = optional(PATH, "Certificate authority (PEM) of push servers; none: the system's")

    # Mirrors in other trackers: docs/trackers.md
    tensorboard = Setting(
        None, FOLDER, "Write the run as TensorBoard event files, below this folder; `on`: in the run folder"
    )
    mlflow = optional(TRACKING_URI, "MLflow server, folder or database to mirror runs to")
    wandb_project = optional(NAME, "Project in Weights & Biases to mirror runs to")
    wandb_run_name = optional(TEXT, "Name of the run in W&B; none: the run's name")
    wandb_offline = Setting(False, SWITCH, "Only write W&B's files, for wandb sync")

    export = Setting({}, TARGETS, "Exporters of other packages, by name, with their addresses (docs/plugins.md)")

    # A gateway that keeps the runs of many machines: docs/fleet.md
    gateway = optional(TARGET, "Gateway to ship runs to")
    gateway_token = Setting("env:TRAINVITALS_TOKEN", SECRET, "Token for the gateway")
    gateway_ca = optional(PATH, "Certificate authority (PEM) of the gateway; none: the system's")
    gateway_certificate = optional(PATH, "Client certificate (PEM) for the gateway, for mutual TLS")
    gateway_key = optional(PATH, "Private key of the client certificate (PEM); none: in the same file")
    gateway_interval = Setting(2.0, duration(0.1), "Interval between requests to the gateway for a live run")

    # The run folder
    rotate_size_mb = Setting(16.0, size("MB", 0.001), "Rotate a journal file at this size; after an hour in any case")
    keep_jsonl = Setting(False, SWITCH, "Keep journal files after sealing them to Parquet")
    max_age = optional(duration(60), "Remove ended runs after this time; none: never")
    max_size_gb = optional(
        size("GB", 0.001), "Maximum size of all runs; the oldest ended ones are removed; none: no limit"
    )

    # The dashboard in the browser
    dashboard = Setting(False, SWITCH, "Serve the dashboard during the run, and print its address")
    web_host = Setting("127.0.0.1", TEXT, "Address to listen on; any but loopback requires a token")
    web_token = Setting(True, SWITCH, "Require a token on loopback too, where other users of this machine can connect")
    web_port = Setting(8080, integer(0, 65535), "Port to listen on; 0: any free one")
    web_accept = Setting(
        (),
        choices("wandb", "mlflow", "otlp"),
        "Clients of other trackers that may log to this server (docs/trackers.md)",
    )
    # Other machines: docs/machines.md
    hosts = Setting((), HOSTS, "Machines shown by `top`, `runs` and `serve`: SSH hosts, server URLs, `local`")
    remote_command = Setting("trainvitals", TEXT, "The trainvitals command on machines reached over SSH")

    # A fleet: docs/fleet.md
    store = optional(STORE, "Store with the runs of a fleet, clickhouse://HOST:8123/DATABASE; none: folders")

    price_gpu_hour = optional(number(0), "Price per GPU hour, to show the cost of a run")
    price_kwh = optional(number(0), "Price per kWh, if there is no price per hour")
    price_currency = optional(TEXT, "Currency of the prices, such as USD")
    price_plan = Setting(
        "none",
        choice("none", "on_demand", "spot"),
        "List prices for GPUs if there is no price per hour, in USD (docs/cost.md)",
    )
    price_region = optional(TEXT, "Country of the GPUs' electricity, such as DE, to show their CO2 (docs/cost.md)")
    price_co2 = optional(number(0), "Grams of CO2 per kWh, overriding the country's")

    # run.json
    capture_git = Setting(True, SWITCH, "Record git commit, branch, remote and uncommitted changes")
    git_patch_kb = Setting(
        256, integer(0, 4096), "Keep uncommitted changes with the run as a patch of at most this many KB; 0: never"
    )
    pod_info = Setting(
        Path("/etc/podinfo"), PATH, "Folder of the downward API with `labels` of the pod (docs/schedulers.md)"
    )
    capture_env = Setting(
        _CAPTURE_ENV, TEXTS, "Environment variables to record, `*` allowed; secrets are still redacted"
    )
    correlation_ids = Setting(False, SWITCH, "Add the run's correlation id to every line of metrics (docs/agent.md)")
    redact = Setting((), TEXTS, "Additional keys to redact, `*` allowed")

    __slots__ = ("_rows", "ignored_files", "unknown_environment")
    _rows: Mapping[str, Row]
    unknown_environment: tuple[str, ...]
    """Variables with our prefix that are not settings: worth a warning, never a reason to stop a training."""

    ignored_files: tuple[str, ...]
    """Warnings about files, and removed settings in files, that were found and are not used."""

    def __init__(
        self, rows: Mapping[str, Row], unknown_environment: tuple[str, ...], ignored_files: tuple[str, ...] = ()
    ) -> None:
        """`rows` by attribute."""
        object.__setattr__(self, "_rows", rows)
        object.__setattr__(self, "unknown_environment", unknown_environment)
        object.__setattr__(self, "ignored_files", ignored_files)

    def noting(self, ignored_file: str) -> Settings:
        """The same, with one more unused file."""
        return Settings(self._rows, self.unknown_environment, (*self.ignored_files, ignored_file))

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise AttributeError(f"cannot set '{attribute}': settings do not change once they are resolved")

    @property
    def file_mode(self) -> int:
        """The permissions of a new run file, before the umask."""
        return 0o666 if self.shared else 0o600

    def __iter__(self) -> Iterator[Row]:
        """Every setting, in the order of the table."""
        return iter(self._rows.values())

    def origin(self, name: str) -> str:
        """Where the value came from: `default`, `argument`, `flag --interval`, `TRAINVITALS_INTERVAL` or
        `trainvitals.yaml:3`."""
        return self._rows[find(name, "asked for").attribute].origin

    def as_json(self) -> dict[str, object]:
        """Plain values by name, from which `resolve(arguments=...)` makes the same settings. Of a value with a secret,
        its place."""
        return {row.name: f"config:{row.where}" if row.where else _plain(row.value) for row in self}


def _plain(value: object) -> object:
    if isinstance(value, tuple) and value and isinstance(value[0], Address):
        return {item.name: item.reference for item in value}  # its place, never the secret itself
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return str(value.absolute()) if isinstance(value, Path) else value  # who reads it may be in another folder


TABLE: tuple[Setting[Any], ...] = tuple(row for row in vars(Settings).values() if isinstance(row, Setting))
"""Every row, in the order of the class."""

REMOVED = {
    "sysfs_root": "sysfs is read from /sys",
    "system_interval": "the host is sampled at `interval`",
    "process_interval": "processes are sampled at `interval`, at least 2s apart",
    "stall_factor": "raise `stall_after` where steps take very different times",
    "alerts.group_wait": "messages always wait one second for more of the same",
    "alerts.give_up_after": "a message always waits a day for a channel that is down",
    "alerts.stop_grace": "use `alerts.kill_after`",
    "alerts.stop_kill": "use `alerts.kill_after`",
    "prometheus.spool_size_mb": "each push always may keep 64 MB on disk",
    "rotate_age": "journal files are closed after an hour, or at `rotate_size_mb`",
    "seal_min_size_mb": "the last files of a run are sealed if they have a quarter of `rotate_size_mb`",
    "capture_packages": "versions of packages are always recorded",
}
"""Settings of earlier versions, and what holds instead."""
_REMOVED = {name.replace(".", "_"): reason for name, reason in REMOVED.items()}

_BY_NAME = {row.attribute: row for row in TABLE} | {row.name: row for row in TABLE}


def explain_removed(name: str) -> str | None:
    """That a setting was removed and what holds instead; None if it never existed or still does. The name may have
    underscores for dots."""
    reason = _REMOVED.get(name.replace(".", "_"))
    return None if reason is None else f"the setting '{name}' was removed: {reason}"


def find_row(name: str) -> Setting[Any] | None:
    """The row of that name, with dots or underscores."""
    return _BY_NAME.get(name)


def find(name: str, place: str) -> Setting[Any]:
    """The row of that name; `place` is where the name is, for the error if there is none."""
    row = find_row(name)
    if row is None and (removed := explain_removed(name)):
        raise SettingError(f"{removed} ({place})", hint="see all settings: trainvitals config")
    if row is None:
        from trainvitals.settings.older_names import suggest

        raise SettingError(
            f"unknown setting '{name}' ({place}){suggest(name, [row.name for row in TABLE])}",
            hint="see all settings: trainvitals config",
        )
    return row
