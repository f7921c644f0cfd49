"""Callbacks for the frameworks people train with, and the classic monitors. One file per framework.

Each is imported only when it is used (`trainvitals.TransformersCallback` imports transformers then). They translate:
what a framework says becomes lines and events of a run; everything that is measured is measured by `trainer.watch`.
"""
