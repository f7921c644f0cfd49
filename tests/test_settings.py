"""Where a setting's value comes from, what is refused and how the refusal reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.errors import SettingError, name_kind
from trainvitals.settings import TABLE, Setting, Settings, resolve
from trainvitals.settings.addresses import read_address
from trainvitals.settings.docs_page import render_markdown
from trainvitals.settings.files import parse_toml, parse_yaml
from trainvitals.settings.kinds import duration, format_duration, parse_duration
from trainvitals.settings.resolution import RESERVED, complaints, describe_unknown, mark_warned
from trainvitals.settings.table import REMOVED, find

ROOT = Path(__file__).parents[1]


def resolve_in(folder: Path, **places: object) -> Settings:
    """Settings as they are in a folder, with an environment that has nothing else in it."""
    places.setdefault("environ", {})
    return resolve(folder=folder, **places)  # type: ignore[arg-type]


def refusal(folder: Path, **places: object) -> str:
    with pytest.raises(SettingError) as caught:
        resolve_in(folder, **places)
    return str(caught.value)


# -- order


def test_without_anything_every_value_is_its_default(tmp_path: Path) -> None:
    settings = resolve_in(tmp_path)
    assert settings.interval == 1.0
    assert settings.dir == Path("trainvitals_runs")
    assert settings.gpus is None
    assert settings.capture_env[0] == "CUDA_VISIBLE_DEVICES"
    assert {row.origin for row in settings} == {"default"}


def test_argument_beats_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("# ours\nproject: p\ninterval: 5\n")
    places: dict[str, object] = {}
    assert resolve_in(tmp_path / "elsewhere" / "..").interval == 5.0
    seen = []
    for place, value in (
        ("none", None),
        ("environ", {"TRAINVITALS_INTERVAL": "4"}),
        ("flags", {"interval": "3"}),
        ("arguments", {"interval": 2}),
    ):
        if value is not None:
            places[place] = value
        settings = resolve_in(tmp_path, **places)
        seen.append((settings.interval, settings.origin("interval")))
    assert seen == [
        (5.0, "trainvitals.yaml:3"),
        (4.0, "TRAINVITALS_INTERVAL"),
        (3.0, "flag --interval"),
        (2.0, "argument"),
    ]


def test_none_and_an_empty_variable_mean_not_given(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("interval: 5\nproject:\n")
    settings = resolve_in(
        tmp_path,
        arguments={"interval": None},
        flags={"interval": None},
        environ={"TRAINVITALS_INTERVAL": ""},
    )
    assert settings.origin("interval") == "trainvitals.yaml:1"
    assert settings.origin("project") == "default"


def test_the_word_of_an_open_setting_opens_it_again(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("max_age: 30d\ngpus: [0]\nsources: nvidia\n")
    environ = {"TRAINVITALS_MAX_AGE": "none", "TRAINVITALS_GPUS": "all", "TRAINVITALS_SOURCES": "none"}
    settings = resolve_in(tmp_path, environ=environ)
    assert settings.max_age is None
    assert settings.gpus is None
    assert settings.sources == (), "none of the sources is not the same as all of them"


def test_flags_are_named_as_they_are_typed(tmp_path: Path) -> None:
    assert resolve_in(tmp_path, flags={"gpu_interval": "1s"}).origin("gpu_interval") == "flag --gpu-interval"


# -- files


def test_the_first_file_upward_counts_and_only_that_one(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("interval: 7\nproject: far\n")
    near = tmp_path / "a" / "b"
    near.mkdir(parents=True)
    assert resolve_in(near).origin("project") == f"{Path('..', '..', 'trainvitals.yaml')}:2"
    (near / "trainvitals.yml").write_text("project: near\n")
    settings = resolve_in(near)
    assert (settings.project, settings.interval) == ("near", 1.0)


def test_pyproject_counts_if_it_has_our_table(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("project: above\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    project = inner / "pyproject.toml"
    project.write_text('[project]\ndependencies = ["trainvitals"]\n')
    assert resolve_in(inner).project == "above"
    project.write_text('[project]\nname = "x"\n\n[tool.trainvitals]\ngpus = [0, "GPU-6f"]\nstrict = true\n')
    settings = resolve_in(inner)
    assert (settings.gpus, settings.strict, settings.project) == ((0, "GPU-6f"), True, "default")
    assert settings.origin("strict") == "pyproject.toml:6"


def test_a_broken_pyproject_that_never_names_us_is_not_our_business(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("this is = not [ toml")
    assert resolve_in(tmp_path).origin("interval") == "default"


def test_a_named_file_is_used_and_must_exist(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("interval: 9\n")
    other = tmp_path / "other.yaml"
    other.write_text("interval: 3\n")
    assert resolve_in(tmp_path, config=other).interval == 3.0
    assert resolve_in(tmp_path, environ={"TRAINVITALS_CONFIG": str(other)}).interval == 3.0
    assert "no configuration file" in refusal(tmp_path, config=tmp_path / "missing.yaml")
    assert "cannot read" in refusal(tmp_path, config=tmp_path)


def test_a_named_toml_file_must_have_our_table(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("[tool.other]\nx = 1\n")
    assert "has no table [tool.trainvitals]" in refusal(tmp_path, config=path)


def test_a_relative_path_in_a_file_is_meant_from_that_file(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("dir: runs\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert resolve_in(inner).dir == tmp_path / "runs"
    assert resolve_in(inner, environ={"TRAINVITALS_DIR": "runs"}).dir == Path("runs")


def test_yaml_scalars_are_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("project: 007\nstrict: yes\ncapture_env: [A_*, B]\ngpus: 0,GPU-1\n")
    settings = resolve_in(tmp_path)
    assert settings.project == "007"
    assert settings.strict is True
    assert settings.capture_env == ("A_*", "B")
    assert settings.gpus == (0, "GPU-1")


def test_sections_become_dotted_names_with_their_lines() -> None:
    names = ["interval", "alerts.cooldown", "alerts.mail.to"]
    yaml = "interval: 1\nalerts:\n  cooldown: 5m\n  mail:\n    to: me\n"
    assert parse_yaml(yaml, "f.yaml", names) == [
        ("interval", "1", "f.yaml:1"),
        ("alerts.cooldown", "5m", "f.yaml:3"),
        ("alerts.mail.to", "me", "f.yaml:5"),
    ]
    toml = '[tool.trainvitals]\ninterval = 1\n[tool.trainvitals.alerts]\ncooldown = "5m"\nmail = { to = "me" }\n'
    assert parse_toml(toml, "f.toml", names) == [
        ("interval", 1, "f.toml:2"),
        ("alerts.cooldown", "5m", "f.toml:4"),
        ("alerts.mail.to", "me", "f.toml"),
    ]


def test_a_dotted_setting_has_a_variable_and_a_flag() -> None:
    row = Setting(1.0, duration(), "")
    row.__set_name__(Settings, "alerts_cool_down")
    assert (row.name, row.variable, row.flag) == (
        "alerts.cool_down",
        "TRAINVITALS_ALERTS_COOL_DOWN",
        "--alerts-cool-down",
    )


# -- refusals


@pytest.mark.parametrize(
    ("places", "place"),
    [
        ({"arguments": {"intervall": 1}}, "argument"),
        ({"flags": {"intervall": 1}}, "flag"),
        ({"file": "project: x\nintervall: 1\n"}, "trainvitals.yaml:2"),
        ({"toml": "[tool.trainvitals]\nintervall = 1\n"}, "pyproject.toml:2"),
    ],
)
def test_an_unknown_name_is_refused_with_its_place_and_the_nearest_name(
    tmp_path: Path, places: dict[str, object], place: str
) -> None:
    if text := places.pop("file", None):
        (tmp_path / "trainvitals.yaml").write_text(str(text))
    if text := places.pop("toml", None):
        (tmp_path / "pyproject.toml").write_text(str(text))
    assert f"unknown setting 'intervall' ({place}), did you mean 'interval'?" in refusal(tmp_path, **places)


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_says_what_holds_instead_and_its_line_in_a_file_is_left_out(
    tmp_path: Path, name: str
) -> None:
    section, _, key = name.rpartition(".")
    text = f"{section}:\n  {key}: 1\n" if section else f"{key}: 1\n"
    (tmp_path / "trainvitals.yaml").write_text(f"interval: 2s\n{text}")
    settings = resolve_in(tmp_path)
    (told,) = settings.ignored_files
    assert settings.interval == 2.0 and f"the setting '{name}' was removed: {REMOVED[name]}" in told
    assert f"the setting '{name}' was removed: {REMOVED[name]}" in refusal(tmp_path, arguments={name: 1})
    variable = f"TRAINVITALS_{name.upper().replace('.', '_')}"
    if variable not in RESERVED:
        assert REMOVED[name] in describe_unknown(variable)
    instead = re.findall(r"`(.+?)`", REMOVED[name])
    assert all(find(other, "") for other in instead)


def test_an_unknown_variable_is_listed_and_harms_nobody(tmp_path: Path) -> None:
    environ = {
        "TRAINVITALS_INTERVALL": "1",
        "PATH": "/bin",
        **dict.fromkeys(RESERVED - {"TRAINVITALS_CONFIG"}, "x"),
    }
    settings = resolve_in(tmp_path, environ=environ)
    assert settings.unknown_environment == ("TRAINVITALS_INTERVALL",)
    assert settings.interval == 1.0


def test_a_variable_that_names_no_setting_is_told_once_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals.settings.resolution._warned", set())
    settings = resolve_in(tmp_path, environ={"TRAINVITALS_INTERVALL": "1", "TRAINVITALS_XYZZY": "1"})
    first, second = complaints(settings)
    assert first == (
        "variable TRAINVITALS_INTERVALL is ignored: it is not a setting, did you mean 'TRAINVITALS_INTERVAL'?"
    )
    assert second == "variable TRAINVITALS_XYZZY is ignored: it is not a setting; see trainvitals config --describe"
    assert complaints(settings) == []


def test_warnings_of_the_parent_process_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.settings.resolution._warned", set())
    environ = {"TRAINVITALS_INTERVALL": "1"}
    mark_warned(resolve_in(tmp_path, environ=environ), environ)
    more = resolve_in(tmp_path, environ={**environ, "TRAINVITALS_GPU": "1"})
    assert [text.split()[1] for text in complaints(more, environ)] == ["TRAINVITALS_GPU"]


def test_what_a_program_of_an_alert_is_told_is_no_mistake(tmp_path: Path) -> None:
    from trainvitals.alerts.channels import Outgoing, command

    body = {"rule": "r", "state": "firing", "severity": "info"}
    said = tmp_path / "said"
    outgoing = Outgoing(body, "title", "text", late=0.0, timeout=60.0)
    command.send(f"command:sh -c 'env > {said}'", outgoing)
    environ = dict(line.split("=", 1) for line in said.read_text().splitlines() if line.startswith("TRAINVITALS_ALERT"))
    assert len(environ) == 5
    assert resolve_in(tmp_path, environ=environ).unknown_environment == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", "fast"),
        ("interval", 0.01),
        ("interval", "10ms"),
        ("interval", -1),
        ("interval", True),
        ("interval", float("nan")),
        ("interval", float("inf")),
        ("interval", "1h 30"),
        ("interval", [1]),
        ("strict", "maybe"),
        ("strict", 2),
        ("simulate_gpus", 1.5),
        ("simulate_gpus", -1),
        ("simulate_gpus", 1000),
        ("project", "../up"),
        ("project", "a\\b"),
        ("project", ".."),
        ("project", ""),
        ("project", True),
        ("project", "x" * 129),
        ("project", "line\nbreak"),
        ("dir", 3),
        ("dir", "a\0b"),
        ("gpus", "first"),
        ("gpus", [-1]),
        ("gpus", True),
        ("gpus", [True]),
        ("gpus", 0.5),
        ("sources", {"nvidia": True}),
        ("sources", [1]),
        ("openmetrics", "localhost:9100"),
        ("openmetrics", "file:///etc/passwd"),
        ("rotate_size_mb", "16 parsecs"),
        ("rotate_size_mb", 0),
        ("max_age", "1s"),
        ("stall_after", 0.5),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_name_and_place(tmp_path: Path, name: str, value: object) -> None:
    message = refusal(tmp_path, arguments={name: value})
    assert re.match(rf"setting '{name}' \(argument\): .* is not .+\n  the default is ", message, re.DOTALL)


def test_a_bad_variable_is_named_as_such(tmp_path: Path) -> None:
    message = refusal(tmp_path, environ={"TRAINVITALS_INTERVAL": "fast"})
    assert message.startswith(
        "setting 'interval' (TRAINVITALS_INTERVAL): 'fast' is not a duration such as 500ms, 10s, 5m, 2h or 30d"
    )


def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    message = refusal(tmp_path, environ={"TRAINVITALS_OPENMETRICS": "ftp://me:hunter2@host/metrics"})
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("project: x\ninterval: [1, 2\nstrict: true\n", "trainvitals.yaml:3:"),
        ("project: x\n\tinterval: 1\n", "trainvitals.yaml:2:1"),
        ("a: b: c\n", "trainvitals.yaml:1:5"),
        ("project: x\nbad: \x07\n", "trainvitals.yaml:2"),
        ("project: a\n---\nproject: b\n", "trainvitals.yaml:2:1"),
    ],
)
def test_a_file_that_is_not_yaml_is_refused_with_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "trainvitals.yaml").write_text(text)
    message = refusal(tmp_path)
    assert message.startswith(place)
    assert "not YAML" in message


def test_a_file_that_is_not_toml_is_refused_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.trainvitals]\nproject = "x\n')
    assert re.match(r".*pyproject\.toml:2:13: not TOML", refusal(tmp_path))


@pytest.mark.parametrize("text", ["- interval\n- project\n", "just words\n", "42\n"])
def test_yaml_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trainvitals.yaml").write_text(text)
    assert "trainvitals.yaml:1:1: expected lines of 'name: value'" in refusal(tmp_path)


def test_an_empty_file_is_fine(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("# nothing yet\n")
    assert resolve_in(tmp_path).origin("interval") == "default"


def test_a_setting_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_text("interval: 1\nproject: x\ninterval: 2\n")
    assert "is given twice: trainvitals.yaml:1 and trainvitals.yaml:3" in refusal(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trainvitals.yaml").write_bytes(b"project: x\n\xff\xfe")
    assert "trainvitals.yaml:2: not UTF-8 text" in refusal(tmp_path)


@pytest.mark.promise("a settings file that is huge or endlessly nested", "it is refused")
def test_a_huge_or_bottomless_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trainvitals.yaml"
    path.write_text("project: x # " + "x" * 1_000_000)
    assert "larger than" in refusal(tmp_path)
    path.write_text("gpus: " + "[" * 20_000)
    assert "nested too deeply" in refusal(tmp_path)
    path.write_text("gpus: &a [*a]\n")
    assert "nested too deeply" in refusal(tmp_path)


@pytest.mark.promise("a YAML bomb (aliases of aliases)", "it does not multiply")
def test_aliases_of_aliases_do_not_multiply(tmp_path: Path) -> None:
    lines = ["gpus:", "- &a0 [x]"]
    lines += [f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    (tmp_path / "trainvitals.yaml").write_text("\n".join(lines))
    assert "setting 'gpus' (trainvitals.yaml:1)" in refusal(tmp_path)


# -- values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("50ms", 0.05),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("30d", 2592000),
        ("1h30m", 5400),
        (" 1.5 H ", 5400),
        ("0.25", 0.25),
        ("1e-1", 0.1),
        (3, 3),
    ],
)
def test_durations_are_read(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@settings(deadline=None)
@given(st.floats(min_value=0, allow_infinity=False) | st.integers(0, 10**9).map(float))
def test_every_duration_reads_back_from_its_text(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_sizes_are_read_in_any_unit_and_kept_in_their_own(tmp_path: Path) -> None:
    arguments = {"rotate_size_mb": "2GB", "max_size_gb": "512 MiB", "console_size_mb": 3}
    settings = resolve_in(tmp_path, arguments=arguments)
    assert (settings.rotate_size_mb, settings.max_size_gb, settings.console_size_mb) == (2048, 0.5, 3)


def test_lists_come_as_text_with_commas_or_as_lists(tmp_path: Path) -> None:
    for given_value in ("nvidia, system,", ["nvidia", "system"], ("nvidia", " system ")):
        assert resolve_in(tmp_path, arguments={"sources": given_value}).sources == ("nvidia", "system")
    assert resolve_in(tmp_path, arguments={"gpus": 3}).gpus == (3,)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    import numpy as np

    arguments = {"interval": np.float32(0.5), "simulate_gpus": np.int64(2), "gpus": [np.int32(1)]}
    settings = resolve_in(tmp_path, arguments=arguments)
    assert (settings.interval, settings.simulate_gpus, settings.gpus) == (0.5, 2, (1,))


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert resolve_in(tmp_path, arguments={"dir": "~/runs"}).dir == tmp_path / "runs"


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "interval": st.floats(0.05, 1e6),
            "gpus": st.lists(st.integers(0, 100) | st.just("GPU-1234"), max_size=4),
            "sources": st.lists(st.sampled_from(["nvidia", "system"]), max_size=2),
            "strict": st.booleans(),
            "project": st.text("abc é-_ ", min_size=1, max_size=9).filter(str.strip),
            "max_size_gb": st.floats(0.001, 1e6),
            "simulate_gpus": st.integers(0, 64),
        },
    )
)
def test_settings_survive_json_and_text(arguments: dict[str, object]) -> None:
    first = resolve(arguments, environ={}, folder=ROOT / "tests")
    assert resolve(first.as_json(), environ={}, folder=ROOT / "tests").as_json() == first.as_json()
    environ = {setting.variable: row.text for setting, row in zip(TABLE, first, strict=True)}
    assert resolve(environ=environ, folder=ROOT / "tests").as_json() == first.as_json()


# -- the table


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    settings = resolve_in(tmp_path)
    for attribute in ("interval", "unknown_environment", "_rows", "new"):
        with pytest.raises(AttributeError, match="do not change"):
            setattr(settings, attribute, 1)
    assert settings.interval == 1.0


def test_no_two_settings_share_a_variable_and_none_is_reserved() -> None:
    variables = [row.variable for row in TABLE]
    assert len(set(variables)) == len(variables)
    assert RESERVED.isdisjoint(variables)


def test_every_setting_says_what_it_means_and_its_default_fits_it() -> None:
    for row in TABLE:
        assert row.help, row.name
        assert "|" not in row.help, "it would break the table in the docs"
        assert row.kind.parse(row.kind.format(row.default)) == row.default


def test_the_docs_are_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == render_markdown(), "run: python -m trainvitals.settings > docs/settings.md"


def test_the_command_in_the_docs_writes_the_docs() -> None:
    written = subprocess.run(
        [sys.executable, "-m", "trainvitals.settings"], capture_output=True, check=True, encoding="utf-8"
    )
    assert written.stdout == render_markdown()


def test_reading_settings_imports_no_third_party_module(tmp_path: Path) -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "from trainvitals.settings import resolve; resolve()\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names - {'trainvitals'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_removed_current_folder_is_no_reason_to_fail(tmp_path: Path) -> None:
    program = (
        "import os, sys; folder = sys.argv[1]; os.mkdir(folder); os.chdir(folder); os.rmdir(folder)\n"
        "from trainvitals.settings import resolve; print(resolve(environ={}).interval)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path / "gone")],
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == "1.0"


def test_a_secret_given_where_a_reference_is_needed_is_not_repeated_in_the_error() -> None:
    with pytest.raises(SettingError, match=r"prometheus.token") as caught:
        resolve({"prometheus.token": "plain-hunter2"}, environ={}, folder=Path("/"))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_a_training_says_once_that_a_variable_names_no_setting_and_only_rank_0(
    tmp_path: Path, rank: str, times: int
) -> None:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
    more = {"AGENT": "0", "DIR": str(tmp_path), "RUNTIME_DIR": str(tmp_path / "runtime"), "INTERVALL": "2"}
    environ |= {f"TRAINVITALS_{name}": text for name, text in more.items()}
    script = f"import trainvitals\nfor _ in range(2): trainvitals.init(rank={rank}, world_size=2).finish()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("did you mean 'TRAINVITALS_INTERVAL'?") == times, done.stderr


# -- files that somebody else may have put there


def other_users_file(path: Path, text: str = "interval: 9\n", *, owner: int = 12345, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder as /tmp is: everybody may put files into it."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    return place


@pytest.mark.promise(
    "a settings file of another user above the working folder", "it is ignored, with a warning", area="Other users"
)
def test_a_file_of_another_user_above_is_ignored_and_told(shared: Path, tmp_path: Path) -> None:
    work = shared / "mine"
    work.mkdir()
    (tmp_path / "trainvitals.yaml").write_text("interval: 7\n")
    theirs = other_users_file(shared / "trainvitals.yaml")
    for folder in (work, shared):
        settings = resolve_in(folder)
        assert settings.interval == 7, "the search goes on above it"
        (said,) = settings.ignored_files
        assert said.startswith(f"{theirs} is ignored: it belongs to user 12345") and "TRAINVITALS_CONFIG=" in said
    assert resolve_in(work, environ={"TRAINVITALS_CONFIG": str(theirs)}).interval == 9, "named, it counts"


def test_pyproject_of_another_user_is_ignored_in_silence_as_most_are_not_about_us(shared: Path) -> None:
    other_users_file(shared / "pyproject.toml", "[tool.trainvitals]\ninterval = 9\n")
    settings = resolve_in(shared)
    assert settings.interval == 1.0 and settings.ignored_files == ()


@pytest.mark.parametrize(
    ("mode", "folder_mode", "why"),
    [(0o666, 0o755, "others may write it"), (0o664, 0o755, "others may write it"),
     (0o644, 0o777, "others may write its folder"), (0o644, 0o775, "others may write its folder")],
)  # fmt: skip
@pytest.mark.promise("a settings file writable by others", "it is ignored", area="Other users")
def test_a_file_that_others_may_write_is_ignored(tmp_path: Path, mode: int, folder_mode: int, why: str) -> None:
    place = tmp_path / "place"
    work = place / "work"
    work.mkdir(parents=True)
    path = other_users_file(place / "trainvitals.yaml", owner=0, mode=mode)
    os.chown(path, 0, 12345)
    os.chown(place, 0, 12345)
    place.chmod(folder_mode)
    settings = resolve_in(work)
    assert settings.interval == 1.0 and f"{path} is ignored: {why}" in settings.ignored_files[0]
    place.chmod(0o755)
    path.chmod(0o644)
    assert resolve_in(work).interval == 9.0


def test_files_of_ones_own_group_and_of_the_owner_of_the_folder_count(tmp_path: Path) -> None:
    """A umask of 002 where every user has a group, and root in a container who works in a user's folder."""
    own = tmp_path / "own"
    own.mkdir()
    path = other_users_file(own / "trainvitals.yaml", owner=0, mode=0o664)
    own.chmod(0o775)
    assert resolve_in(own).interval == 9.0
    os.chown(own, 12345, 12345)
    os.chown(path, 12345, 12345)
    assert resolve_in(own).interval == 9.0
    own.chmod(0o777)
    assert resolve_in(own).interval == 1.0


@pytest.mark.promise(
    "an attacker's settings file with an `exec` action", "nothing in it runs, and no training stops", area="Other users"
)
def test_a_settings_file_of_an_attacker_starts_nothing_and_stops_no_training(shared: Path) -> None:
    marks = [shared / "owned1", shared / "owned2"]
    other_users_file(
        shared / "trainvitals.yaml", f"alerts:\n  notify: 'command:touch {marks[0]}'\n  rules: [\n", owner=7
    )
    work = shared / "mine"
    work.mkdir()
    script = "import trainvitals\nrun = trainvitals.init(agent=False)\nrun.log({'loss': 1.0}, step=0)\nprint('trained')"
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINVITALS_")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=work, env=environ, capture_output=True, text=True, check=False
    )
    assert done.stdout == "trained\n" and done.returncode == 0
    assert done.stderr.count("is ignored") == 1 and "it belongs to" in done.stderr
    assert not any(mark.exists() for mark in marks)


@pytest.mark.parametrize(
    "text", ["intervall: 1\n", "interval: fast\n", "a: [\n", "alerts:\n  rules:\n  - when: 'loss >'\n", "x" * 2_000_000]
)
@pytest.mark.promise("a broken settings file", "one warning; the training continues")
def test_a_broken_file_of_ones_own_stops_no_training_unless_strict(tmp_path: Path, text: str) -> None:
    (tmp_path / "trainvitals.yaml").write_text(text)
    script = (
        "import sys, trainvitals\ntrainvitals.init(agent=False, strict='strict' in sys.argv).finish()\nprint('trained')"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINVITALS_")}

    def train(*flags: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *flags], cwd=tmp_path, env={**environ, **more}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip

    done = train()
    assert done.stdout == "trained\n", done.stderr
    assert done.stderr.count("The file is ignored, training continues") == 1 and "trainvitals.yaml" in done.stderr
    assert train("strict").returncode == 1
    assert train(TRAINVITALS_CONFIG="trainvitals.yaml").returncode == 1, "named, it has to be right"


# -- values with a secret, passed on to another process


@pytest.mark.parametrize("name", ["openmetrics", "alerts.rules"])
def test_a_value_with_a_secret_is_passed_on_by_where_it_is_and_read_again_there(tmp_path: Path, name: str) -> None:
    values: dict[str, Any] = {
        "openmetrics": ["http://me:hunter2x@host:9/metrics"],
        "alerts.rules": [{"name": "a", "when": "training.loss > 1", "command": "x --password hunter2x"}],
    }
    path = tmp_path / "trainvitals.yaml"
    path.write_text(json.dumps({name: values[name]} if "." not in name else {"alerts": {"rules": values[name]}}))
    variable = f"TRAINVITALS_{name.upper().replace('.', '_')}"
    text = values[name][0] if name == "openmetrics" else json.dumps(values[name])
    for found, environ in (
        (resolve_in(tmp_path), {}),
        (resolve_in(Path("/"), environ={variable: text}), {variable: text}),
    ):
        passed = json.dumps(found.as_json())
        assert "hunter2x" not in passed and not any("hunter2x" in row.text for row in found)
        again = resolve(json.loads(passed), environ=environ, folder=Path("/"))
        if name == "openmetrics":
            assert read_address(again.openmetrics[0].url, environ.get) == values[name][0]
        else:
            assert again.alerts_rules == tuple(values[name])
        assert again.as_json()[name] == found.as_json()[name], "and so on to the next"
    with pytest.raises(SettingError, match="holds a secret"):
        resolve({name: values[name]}, environ={}, folder=Path("/"))


def test_a_value_that_cannot_be_read_again_is_left_out_and_reported(tmp_path: Path) -> None:
    gone = f"config:{tmp_path / 'gone.yaml'}#alerts.rules"
    found = resolve({"alerts.rules": gone, "interval": 2}, environ={}, folder=Path("/"))
    assert found.alerts_rules == () and found.interval == 2
    assert "alerts.rules" in found.ignored_files[0] and "gone.yaml" in found.ignored_files[0]


def test_the_link_in_messages_has_no_token_and_a_push_target_may_have_none() -> None:
    found = resolve({"alerts.link": "http://box:8080/?token=hunter2x"}, environ={}, folder=Path("/"))
    assert found.alerts_link == "http://box:8080/?token=[redacted]"
    with pytest.raises(SettingError, match="env:NAME"):
        resolve({"prometheus.otlp": "http://box/v1/metrics?token=hunter2x"}, environ={}, folder=Path("/"))


@pytest.mark.parametrize(
    ("given", "value"),
    [(True, "on"), ("yes", "on"), ("on", "on"), (False, None), ("off", None), ("/data/tb", "/data/tb")],
)
def test_event_files_are_on_off_or_in_a_folder(given: object, value: str | None) -> None:
    settings = resolve({"tensorboard": given}, environ={}, folder=Path("/"))
    assert settings.tensorboard == value
    assert resolve(settings.as_json(), environ={}, folder=Path("/")).tensorboard == value


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("http://mlflow:5000", "http://mlflow:5000"),
        ("env:MLFLOW", "env:MLFLOW"),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
        ("file:///data/mlruns", "/data/mlruns"),
        ("/data/mlruns", "/data/mlruns"),
        ("mlruns", str(Path("mlruns").absolute())),
    ],
)
def test_a_tracking_uri_is_an_address_a_database_or_a_folder(given: str, value: str) -> None:
    assert resolve({"mlflow": given}, environ={}, folder=Path("/")).mlflow == value


@pytest.mark.parametrize(
    "given", ["http://joe:hunter2hunter2@host", "postgresql://joe:hunter2hunter2@host/db", "databricks"]
)
def test_a_tracking_uri_with_a_password_or_of_databricks_is_refused(given: str) -> None:
    with pytest.raises(SettingError) as raised:
        resolve({"mlflow": given}, environ={}, folder=Path("/"))
    assert "hunter2" not in str(raised.value)


def test_a_message_names_a_type_with_its_article() -> None:
    assert [name_kind(value) for value in (1, [], object(), "", np.zeros(2))] == [
        "an int", "a list", "an object", "a str", "an ndarray",
    ]  # fmt: skip
