"""Clients of other trackers log here, unmodified: the protocols of W&B, MLflow and OTLP, into run folders.

`wandb`, `mlflow` and `otlp` know a protocol each and nothing of the web; `app` serves them over HTTP; `runs` keeps what
came. What was acknowledged is in the run folder, as if the training had logged it there.
"""
