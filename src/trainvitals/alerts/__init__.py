"""Alerts: rules over what is measured, their state, and the messages they send.

`language` parses a condition, `windows` remembers what it needs of the past, `evaluation` binds it to the numbers,
`engine` judges; `ledger` decides who is notified and when; `delivery` sends the messages; `actions` acts. Nothing here
imports numpy, and nothing that sends is imported before there is something to send.
"""
