"""The classic API: monitors for hand-written training loops.

Thin by design: readings come through `trainvitals.sources`, lines go through `trainvitals.init` and `Run.log`, and
gradients through `Run.watch`. What each configuration key means today is in `configuration.py`.
"""
