"""What a site imports: Grafana dashboards, Prometheus rules. Made from the panels and the built-in alert rules.

`python -m trainvitals.views.deployment` writes them to `deploy/`; they are committed, because users import them, and a
test proves that they are up to date. Needs grafana-foundation-sdk, which only whoever changes a panel needs.
"""
