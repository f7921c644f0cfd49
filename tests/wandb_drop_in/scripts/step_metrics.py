"""define_metric: another x axis, and what the summary keeps."""

import wandb

run = wandb.init(project="step_metrics")
run.define_metric("custom_step")
run.define_metric("validation_loss", step_metric="custom_step")
run.define_metric("train/step")
run.define_metric("train/*", step_metric="train/step")
run.define_metric("loss", summary="min")
run.define_metric("acc", summary="max,mean")
for i in range(6):
    run.log({"train_loss": 1 / (i + 1), "custom_step": i**2, "validation_loss": 1 / (i + 1)})
    run.log({"train/step": i * 10, "train/loss": i / 2})
    run.log({"loss": abs(i - 2), "acc": i / 10})
assert run.summary["loss"]["min"] == 0
run.finish()
