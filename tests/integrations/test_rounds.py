"""XGBoost, LightGBM and scikit-learn: what they print is what the run has, with a callback and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import find_runs, rows_of, run_automatically, run_python

DATA = """
import json
import sys
import numpy as np
chance = np.random.default_rng(0)
x = chance.random((200, 5))
y = (x.sum(axis=1) > 2.5).astype(int)
callbacks = []
"""
XGBOOST = f"""{DATA}
import xgboost
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.XGBoostCallback(project="mine")]
train, other = xgboost.DMatrix(x[:150], y[:150]), xgboost.DMatrix(x[150:], y[150:])
options = {{"objective": "binary:logistic", "max_depth": 2, "nthread": 1}}
seen, more = {{}}, {{}}
evals = [(train, "train"), (other, "eval")]
booster = xgboost.train(options, train, 4, evals=evals, evals_result=seen, verbose_eval=False, callbacks=callbacks)
xgboost.train(options, train, 2, evals=evals, evals_result=more, verbose_eval=False, xgb_model=booster,
              callbacks=callbacks)
scores = [[*seen[name]["logloss"], *more[name]["logloss"]] for name in ("train", "eval")]
json.dump(dict(zip(("train/logloss", "eval/logloss"), scores)), open("printed.json", "w"))
"""
LIGHTGBM = f"""{DATA}
import lightgbm
if "explicit" in sys.argv:
    import trainvitals
    callbacks = [trainvitals.LightGBMCallback(project="mine")]
train = lightgbm.Dataset(x[:150], y[:150])
other = lightgbm.Dataset(x[150:], y[150:], reference=train)
seen = {{}}
options = {{"objective": "binary", "verbose": -1, "num_threads": 1}}
lightgbm.train(options, train, 6, valid_sets=[train, other], valid_names=["train", "eval"],
               callbacks=[lightgbm.record_evaluation(seen), *callbacks])
scores = {{f"{{name}}/binary_logloss": seen[name]["binary_logloss"] for name in ("train", "eval")}}
json.dump(scores, open("printed.json", "w"))
"""
SKLEARN = f"""{DATA}
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
network = MLPClassifier((4,), max_iter=3, random_state=0).fit(x, y)
stages = []
boosting = GradientBoostingClassifier(n_estimators=3, random_state=0)
boosting.fit(x, y, monitor=lambda stage, *_: stages.append(stage))
assert stages == [0, 1, 2]
json.dump({{"loss": [*network.loss_curve_, *boosting.train_score_]}}, open("printed.json", "w"))
"""


def check(folder: Path, run: Path) -> None:
    printed = json.loads((folder / "printed.json").read_text())
    rows = rows_of(run, "training_metrics*")
    assert [row["step"] for row in rows] == list(range(6))
    for name, values in printed.items():
        assert [row[name] for row in rows] == pytest.approx(values)
    assert all(row["batch_time"] > 0 for row in rows[1:] if "batch_time" in row)
    assert sum("batch_time" in row for row in rows) >= 5
    assert json.loads((run / "run.json").read_text())["config"]


@pytest.mark.parametrize("program", [XGBOOST, LIGHTGBM, SKLEARN], ids=["xgboost", "lightgbm", "sklearn"])
def test_every_round_of_an_unchanged_program_is_there(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    (run,) = run_automatically(tmp_path, "train.py")
    check(tmp_path, run)


@pytest.mark.parametrize("program", [XGBOOST, LIGHTGBM], ids=["xgboost", "lightgbm"])
def test_a_callback_logs_every_round_once(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    run_python(tmp_path, "train.py", "explicit")
    (run,) = find_runs(tmp_path)
    check(tmp_path, run)
    assert json.loads((run / "run.json").read_text())["project"] == "mine"


def test_a_program_with_a_callback_is_not_counted_twice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LIGHTGBM)
    (run,) = run_automatically(tmp_path, "train.py", "explicit")
    check(tmp_path, run)


def test_an_error_in_a_fit_has_no_frame_of_ours(tmp_path: Path) -> None:
    program = """
import traceback
import lightgbm
from sklearn.ensemble import GradientBoostingClassifier
for fit in (lambda: lightgbm.train({}, None), lambda: GradientBoostingClassifier().fit([[1.0]], [None])):
    try:
        fit()
    except Exception:
        assert "trainvitals" not in traceback.format_exc(), traceback.format_exc()
    else:
        raise AssertionError("it did not fail")
"""
    (tmp_path / "train.py").write_text(program)
    run_automatically(tmp_path, "train.py")
