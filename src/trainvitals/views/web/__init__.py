"""The web dashboard: `trainvitals serve`.

`api` has the endpoints, `app` serves them. The answers are made in `views.data`, so that a report has the same.
"""
