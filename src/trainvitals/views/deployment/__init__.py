"""What a site imports: Grafana dashboards, Prometheus rules, Kubernetes pods. Made from the panels, the built-in alert
rules and one table of platforms.

`python -m trainvitals.views.deployment` writes them to `deploy/`; they are committed, because users import them, and a
test proves that they are up to date. Needs grafana-foundation-sdk, which only whoever changes a panel needs.
"""
