"""The names of W&B that scripts use: what they do here, and what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
import trainvitals.wandb as wandb
from trainvitals.journal.folder import list_folders
from trainvitals.journal.reader import RunReader
from trainvitals.wandb import missing


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    missing._reported.clear()
    yield
    wandb.finish()
    trainvitals.finish()


def reader(run: wandb.Run) -> RunReader:
    assert run.kept is not None
    return RunReader(run.kept.folder)


def test_a_run_has_the_properties_that_scripts_ask_for() -> None:
    run = wandb.init(project="p", name="n", entity="me", tags=["a"], notes="text", group="g", job_type="train")
    assert wandb.run is run
    assert (run.name, run.project, run.entity, run.group, run.job_type) == ("n", "p", "me", "g", "train")
    assert run.path == f"me/p/{run.id}" and run.url is None and Path(run.dir).is_dir()
    assert (run.step, run.starting_step, run.resumed, run.disabled, run.sweep_id) == (0, 0, False, False, None)
    assert set(run.tags) == {"a", "g", "train"} and run.notes == "text"
    run.name, run.notes, run.tags = "better", "more", (*run.tags, "b")
    wandb.finish()
    assert wandb.run is None
    file = reader(run).info.file
    assert (file.name, file.notes, set(file.tags)) == ("better", "more", {"a", "b", "g", "train"})


def test_a_configuration_is_read_and_written_by_attribute_and_key(tmp_path: Path) -> None:
    from trainvitals.wandb import config

    run = wandb.init(config=Namespace(lr=0.1, layers=[1, 2]), config_exclude_keys=["layers"])
    config.epochs = 3
    config["seed"] = 1
    config.update({"--lr": 0.2}, allow_val_change=True)
    config.setdefaults({"lr": 9, "new": True})
    assert (config.lr, config["epochs"], config.get("layers"), "seed" in config) == (0.2, 3, None, True)
    assert dict(config) == config.as_dict() == {"lr": 0.2, "epochs": 3, "seed": 1, "new": True}
    with pytest.raises(AttributeError):
        config.nothing  # noqa: B018
    assert reader(run).info.file.config == dict(config)


def test_a_configuration_may_be_a_file_and_its_secrets_are_redacted(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: {desc: null, value: 0.5}\napi_key: abcdefghijklmnopqrst\n")
    run = wandb.init(config="config.yaml")
    assert run.config.lr == 0.5 and run.config.api_key == "abcdefghijklmnopqrst"
    run.config.update({"password": "hunter2hunter2"})
    text = (reader(run).folder / "run.json").read_text()
    assert "abcdefghij" not in text and "hunter2" not in text


def test_what_is_missing_is_named_once_and_does_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    run = wandb.init(project="p", sync_tensorboard=True)
    for _ in range(2):
        wandb.sweep({"method": "grid"}, project="x")
        wandb.agent("id", function=lambda: 1 / 0, count=3)
        api = wandb.Api()
        assert not api and list(api.runs("me/p")) == []
        run.log({"curve": wandb.plot.line_series([1], [[2]]), "cloud": wandb.Object3D("a.obj"), "loss": 1.0})
        run.use_artifact("model:latest").download()
        run.log({"words": ["a", "b"]})
    printed = capfd.readouterr().err
    for name in (
        "sweep()",
        "agent()",
        "Api()",
        "Object3D()",
        "plot.line_series()",
        "Run.use_artifact()",
        "sync_tensorboard",
    ):
        assert printed.count(name + ":") + printed.count(name + "=") == 1, name
    assert [row["loss"] for row in reader(run).rows()] == [1.0, 1.0]
    with pytest.raises(AttributeError):
        wandb._private  # noqa: B018


def test_what_is_missing_can_be_asked_for_as_a_class(capfd: pytest.CaptureFixture[str]) -> None:
    assert not isinstance(1.0, wandb.Object3D) and not isinstance(1.0, (wandb.Molecule, wandb.Image))

    class Own(wandb.Evaluation):  # type: ignore[misc]
        pass

    assert not issubclass(Own, wandb.Evaluation) and Own.__mro__ == (Own, object)
    assert capfd.readouterr().err.count("has no Evaluation") == 1
    for kind in (wandb.CommError, wandb.errors.AuthenticationError, wandb.errors.OfAnotherVersion):
        with pytest.raises(ZeroDivisionError):
            try:
                1 / 0  # noqa: B018
            except kind:
                pass


def test_films_and_sounds_are_files_of_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a.mp4", "b.wav"):
        (tmp_path / name).write_text(name)
    run = wandb.init(project="p")
    run.log({"play/film": wandb.Video("a.mp4", fps=4, format="mp4"), "sound": wandb.Audio(tmp_path / "b.wav", 44100)})
    run.log({"gone": wandb.Video("gone.mp4"), "frames": wandb.Video(np.zeros((2, 3, 4, 4))), "loss": 1.0})
    files = reader(run).folder / "files"
    assert (files / "video/play/film_0.mp4").read_text() == "a.mp4"
    assert (files / "audio/sound_0.wav").read_text() == "b.wav"
    printed = capfd.readouterr().err
    assert "gone.mp4: No such file" in printed and "no Video() of anything but a file" in printed
    assert [row["loss"] for row in reader(run).rows()] == [1.0]


def test_a_disabled_run_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = wandb.init(project="p", mode="disabled", config={"lr": 1})
    wandb.log({"loss": 1.0, "image": wandb.Image(np.zeros((2, 2)))})
    wandb.config.update({"a": 2})
    wandb.summary["best"] = 3
    run.watch(object())
    run.alert("a", "b")
    assert run.save("*.py") == [] and (run.config.lr, run.summary["best"], run.step) == (1, 3, 1)
    wandb.finish()
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb.init().disabled
    assert not (tmp_path / "runs").exists()


def test_variables_of_wandb_count_where_an_argument_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PROJECT": "env", "NAME": "n", "TAGS": "a,b", "NOTES": "text", "RUN_GROUP": "g"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run = wandb.init(settings=wandb.Settings(run_name="of settings", console="off"))
    assert (run.project, run.name, set(run.tags), run.notes) == ("env", "of settings", {"a", "b", "g"}, "text")


def test_a_run_goes_on_by_its_id() -> None:
    first = wandb.init(project="p", id="abc", resume="allow", config={"lr": 1})
    first.log({"loss": 1.0})
    first.log({"loss": 2.0})
    wandb.finish()
    second = wandb.init(project="p", id="abc", resume="must", config={"more": 2})
    assert (second.id, second.resumed, second.starting_step, dict(second.config)) == (
        "abc",
        True,
        2,
        {"lr": 1, "more": 2},
    )
    second.log({"loss": 3.0})
    wandb.finish()
    assert reader(first).folder == reader(second).folder
    assert [(row["step"], row["loss"]) for row in reader(second).rows()] == [(0, 1.0), (1, 2.0), (2, 3.0)]
    with pytest.raises(wandb.errors.UsageError, match="no run 'other'"):
        wandb.init(project="p", id="other", resume="must")
    with pytest.raises(wandb.errors.UsageError, match="never"):
        wandb.init(project="p", id="abc", resume="never")
    third = wandb.init(project="p", id=reader(first).info.id, resume="allow")  # our own id does as well
    assert third.resumed
    fourth = wandb.init(project="p", id="abc", reinit=True)
    assert not fourth.resumed and reader(fourth).folder != reader(first).folder


def test_auto_goes_on_with_a_run_that_was_cut_off() -> None:
    done = wandb.init(project="p")
    wandb.finish()
    fresh = wandb.init(project="p", resume="auto")
    assert not fresh.resumed
    fresh.finish(exit_code=1)
    again = wandb.init(project="p", resume=True)
    assert again.resumed and reader(again).folder == reader(fresh).folder != reader(done).folder


def test_a_second_init_gives_the_active_run_unless_asked_otherwise() -> None:
    first = wandb.init(project="p")
    assert wandb.init(project="p") is first
    assert wandb.init(project="p", reinit=True) is not first and first.is_over


def test_an_exception_ends_a_run_as_failed() -> None:
    with pytest.raises(ZeroDivisionError), wandb.init(project="p") as run:
        run.log({"loss": 1.0})
        1 / 0  # noqa: B018
    info = reader(run).info
    assert info.status == "failed" and "ZeroDivisionError" in info.cause_text
    with wandb.init(project="p", reinit=True) as run:
        run.finish(exit_code=3)
    assert reader(run).info.status == "failed"


def test_log_before_init_raises_as_in_wandb() -> None:
    with pytest.raises(wandb.errors.Error, match=r"wandb.init\(\)"):
        wandb.log({"loss": 1})
    with pytest.raises(wandb.errors.Error):
        wandb.config.lr  # noqa: B018
    run = wandb.init()
    with pytest.raises(ValueError, match="dictionary"):
        run.log([1])  # type: ignore[arg-type]


def test_what_is_logged_as_it_is_becomes_what_wandb_makes_of_it() -> None:
    from matplotlib.figure import Figure

    pandas = pytest.importorskip("pandas")
    run = wandb.init(project="p")
    run.log({"figure": Figure(), "frame": pandas.DataFrame({"a": [1]}), "many": np.arange(50), "word": "text"})
    kinds = {item.name: item.kind for item in reader(run).media()}
    assert kinds == {"figure": "image", "frame": "table", "many": "histogram", "word": "text"}


def test_tables_grow_by_rows_and_columns() -> None:
    table = wandb.Table(columns=["a"], data=np.array([[1], [2]]))
    table.add_data(3)
    table.add_column("b", ["x", wandb.Image(np.zeros((2, 2)), caption="picture"), None])
    assert table.get_column("a", convert_to="numpy").tolist() == [1, 2, 3]
    assert list(table.get_dataframe().columns) == ["a", "b"]
    run = wandb.init(project="p")
    run.log({"t": table})
    (item,) = reader(run).media()
    assert json.loads(item.read()) == {"columns": ["a", "b"], "data": [[1, "x"], [2, "picture"], [3, None]]}


def test_files_are_saved_below_the_run_folder_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out/deep").mkdir(parents=True)
    (tmp_path / "out/deep/model.txt").write_text("first")
    run = wandb.init(project="p")
    saved = wandb.save("out/**/*.txt", base_path="out")
    wandb.save("out/deep/model.txt", base_path="out/deep/elsewhere", policy="now")  # would lead out of the folder
    assert saved == ["out/deep/model.txt"]
    (tmp_path / "out/deep/model.txt").write_text("last")
    wandb.finish()
    files = reader(run).folder / "files"
    assert (files / "deep/model.txt").read_text() == "last"
    assert "not kept" in capfd.readouterr().err
    assert not list((tmp_path / "runs").rglob("*.part"))


def test_artifacts_are_files_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a")
    run = wandb.init(project="p")
    artifact = wandb.Artifact("data/set", type="dataset", metadata={"rows": 1})
    artifact.add_dir("data", name="inner")
    with artifact.new_file("note.txt", mode="w") as file:
        file.write("note")
    with pytest.raises(ValueError, match="not a file"):
        artifact.add_file("nothing.txt")
    assert wandb.log_artifact(artifact, aliases=["best"]).wait() is artifact
    run.log_artifact("data/a.txt", type="raw")
    found = [path for path in (reader(run).folder / "artifacts").rglob("*.txt") if path.is_file()]
    kept = {path.name: path.read_text() for path in found}
    assert kept == {"a.txt": "a", "note.txt": "note"}
    (inner,) = (reader(run).folder / "artifacts/data-set").glob("*/inner/a.txt")
    assert inner.is_file()


def test_a_model_is_watched() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = wandb.init(project="p")
    wandb.watch(model, log="all", log_freq=2)
    for _ in range(6):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log({"loss": loss})
    run.unwatch()
    wandb.finish()
    assert {"loss", "gradient_norm"} <= set(reader(run).names())


def test_importing_it_starts_nothing_and_loads_nothing_heavy() -> None:
    script = (
        "import sys, trainvitals.wandb as wandb; wandb.login(); wandb.setup(); "
        "print(sorted({'numpy', 'torch', 'duckdb', 'wandb', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.strip() == "[]"


def test_small_helpers() -> None:
    assert len(wandb.util.generate_id()) == 8 and wandb.login(key="x") is True
    page = wandb.Html("<b>bold</b>")
    assert str(page) == "<b>bold</b>"
    run: Any = wandb.init(project="p", mode="offline")
    assert repr(run).startswith("<trainvitals.wandb run") and len(list_folders(Path("runs"))) == 1


def test_images_have_the_shades_that_wandb_gives_them() -> None:
    import io

    from PIL import Image

    run = wandb.init(project="p")
    for step, pixels in enumerate(([[0.0, 0.5, 1.0]], [[0.0, 127.5, 255.0]], [[-2.0, 0.0, 2.0]])):
        run.log({"a": wandb.Image(np.array(pixels))})
        found = np.asarray(Image.open(io.BytesIO(reader(run).media()[step].read()))).tolist()
        assert found[0][0] == 0 and abs(found[0][1] - 128) <= 1 and found[0][2] == 255


def test_a_script_that_never_calls_finish_loses_nothing(tmp_path: Path) -> None:
    script = """
import trainvitals.wandb as wandb
run = wandb.init(project="p")
open("model.txt", "w").write("first")
wandb.save("model.txt")
wandb.log({"loss": 1.0})
wandb.log({"loss": 0.5})
open("model.txt", "w").write("last")
"""
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)
    (folder,) = list_folders(tmp_path / "runs")
    assert json.loads((folder / "files/wandb-summary.json").read_text()) == {"loss": 0.5}
    assert (folder / "files/model.txt").read_text() == "last"
    assert RunReader(folder).info.status == "finished"
