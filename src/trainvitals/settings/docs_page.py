"""docs/settings.md, written from the table."""

from __future__ import annotations

from trainvitals.settings.table import TABLE

_INTRODUCTION = """\
# Settings

<!-- Written by `python -m trainvitals.settings > docs/settings.md`. -->

A setting can be given as an argument of `trainvitals.init()`, as a flag of a command that has one, as an
environment variable, or in a file. The first of these that has a value wins:

1. argument: `trainvitals.init(interval=0.5)`
2. flag: `trainvitals monitor --interval 0.5`
3. environment: `TRAINVITALS_INTERVAL=0.5`
4. file: `trainvitals.yaml`, `trainvitals.yml`, or the table `[tool.trainvitals]` of `pyproject.toml`; the
   first found from the current folder upward, or the one that `--config` or `TRAINVITALS_CONFIG` names
5. default

A file that is found rather than named counts only if it belongs to you or to root and nobody else may write it or its
folder: such a file can start programs. Another one is ignored, which is said once. A file of your own with a mistake
stops a command, but never a training: `init()` says what is wrong and goes on without it, unless `strict`.

```yaml
# trainvitals.yaml
project: mnist
interval: 500ms
gpus: [0, 1]
dir: ../runs        # from the folder of this file
```

`trainvitals config` prints the values in force and where each came from. An unknown name or a value that
does not fit is an error that says where it stands; an unknown `TRAINVITALS_*` variable is only reported.

- A duration is a number of seconds, or text such as `500ms`, `10s`, `5m`, `2h`, `1h30m`, `30d`.
- A size is a number in the unit of its name, or text such as `500MB` or `2GB`; 1 MB is 1,048,576 bytes.
- A list is written with commas in a variable or a flag; `none` is the empty list.

| setting | variable | type | default | meaning |
|---|---|---|---|---|
"""


def render_markdown() -> str:
    """The whole page."""
    lines = []
    for row in TABLE:
        default = row.kind.format(row.default).replace(",", "`, `")
        lines.append(f"| `{row.name}` | `{row.variable}` | {row.kind.word} | `{default}` | {row.help} |\n")
    return _INTRODUCTION + "".join(lines)
