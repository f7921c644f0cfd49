"""The dashboard in the browser: `trainvitals serve`.

`answers` turns a run folder into what the API says, without a server, so that a report says the same; `app` serves it.
"""
