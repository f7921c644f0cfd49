"""What the agent knows, for others: a page for Prometheus, pushes where nothing can scrape, OpenTelemetry, and the rows
of a run for other trackers and for whatever another package sends them to.

`registry` names every exporter and its contract. For those of families, `trainvitals.newest` keeps the newest values,
`training` listens to what the ranks log, `families` turns both into metric families, and each way out is one file:
`page` and `server` (scraped), `remote_write`, `otlp` (pushed, by way of `outbox`) and `pushgateway`. Those of rows are
run by `rows` while a run is live and by `delivery` afterwards; `tensorboard`, `mlflow` and `wandb` are ours, and share
`mirroring` and `child`. Nothing here reads hardware: a scrape never waits for a GPU. The agent imports this room when
somebody wants to be served.
"""
