"""Steps: given, repeated, skipped, going back, committed and not, and odd numbers."""

import numpy as np
import wandb

run = wandb.init(project="steps")
run.log({"a": 1.0}, step=5)
run.log({"b": 2.0}, step=5)
run.log({"c": 3.0})
run.log({"d": 4.0})
run.log({"lost": 0.0}, step=3)
run.log({"e": 5.0}, step=20, commit=True)
run.log({"f": 6.0})
run.log({"g": 7.0}, commit=False)
run.log({"h": 8.0}, commit=True)
run.log({"i": 9.0}, step=100)
run.log({"nan": float("nan"), "inf": float("inf"), "low": -float("inf"), "yes": True, "none": None}, step=101)
run.log({"numpy": np.float32(0.5), "whole": np.int64(7), "zero": np.array(2.5), "one": np.array([3.5])}, step=102)
run.log({}, step=150)
run.log({"last": 1})
print("summary", {name: run.summary[name] for name in sorted(run.summary.keys()) if name[0] != "_"})
run.finish()
