"""An experiment of Ray Tune with four trials: one is done, one fails, one is stopped early, one logs for itself. Then
it is restored, and the one that failed is tried again."""

import sys
from pathlib import Path

import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler

import trainvitals

FIXED = Path(sys.argv[2]).parent / "fixed"


class Impatient(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result) -> str:
        return self.STOP if trial.config["kind"] == "stopped" else self.CONTINUE


def trial(config: dict) -> None:
    if config["kind"] == "logging":
        trainvitals.init()
        trainvitals.log({"loss": 0.25}, step=100)
    for number in range(3):
        tune.report({"loss": 1.0 / (number + 1), "nested": {"count": number}})
        if config["kind"] == "failing" and not Path(config["fixed"]).exists():
            raise ValueError("this trial has bad luck")


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    runs = Path(sys.argv[2])
    kinds = ["done", "failing", "stopped", "logging"]
    tuner = tune.Tuner(
        trial,
        param_space={"kind": tune.grid_search(kinds), "fixed": str(FIXED)},
        tune_config=tune.TuneConfig(scheduler=Impatient()),
        run_config=tune.RunConfig(
            name="sweep", storage_path=str(runs.parent), callbacks=[trainvitals.RayTuneCallback(dir=runs)], verbose=0
        ),
    )
    tuner.fit()
    FIXED.touch()
    tune.Tuner.restore(str(runs.parent / "sweep"), trial, resume_errored=True).fit()
