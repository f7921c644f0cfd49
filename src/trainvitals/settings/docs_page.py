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
   first found from the current folder upward, or the one given by `--config` or `TRAINVITALS_CONFIG`
5. default

A file that is found rather than named is used only if it belongs to you or to root and nobody else can write to it or
its folder, because such a file can start programs; any other is ignored with one warning. An error in your own file
stops a command, but never a training: `init()` prints what is wrong and continues without the file, unless `strict`.

```yaml
# trainvitals.yaml
project: mnist
interval: 500ms
gpus: [0, 1]
dir: ../runs        # relative to the folder of this file
```

`trainvitals config` prints the effective values and where each comes from. An unknown name or an invalid value is an
error that names its place; an unknown `TRAINVITALS_*` variable is only a warning.

- A duration is a number of seconds, or text such as `500ms`, `10s`, `5m`, `2h`, `1h30m`, `30d`.
- A size is a number in the unit of its name, or text such as `500MB` or `2GB`; 1 MB is 1,048,576 bytes.
- A list is separated by commas in a variable or a flag; `none` is the empty list.

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
