"""Runs of many machines in one place: agents ship the files of their runs to a gateway, which keeps them in an engine.

The engine is ClickHouse. Views read it through the same interfaces as a folder (`trainvitals.journal.contracts`).
"""
