"""What the agent knows, for others: a page for Prometheus, pushes where nothing can scrape, OpenTelemetry.

`store` keeps the newest values, `training` follows what the ranks log, `families` turns both into metric families,
and each way out is one file: `page` and `server` (scraped), `remote_write`, `otlp` (pushed, by way of `outbox`) and
`pushgateway`. Nothing here reads hardware: a scrape never waits for a GPU. The agent imports this room when somebody
wants to be served.
"""
