"""The documents of a run folder and of the runtime folder, as types.

    run.json            RunFile        `run`
    status[.host].json  Status         `status`
    events_*.jsonl      EventRow       `rows`
    alerts_*.jsonl      AlertRow       `rows`
    benchmarks/*.json   Benchmark      `benchmark`
    runs/*.json         Registration   `registration`
    latest.json         Latest         `latest`
    agent.json          AgentFile      `latest`

Each is parsed and composed here and nowhere else. Parsing never fails: a field that is missing or damaged has its
default, and what is not understood (keys of newer versions and of other programs, values of a wrong type) is kept in
`rest` and written back. `Cause` is why something ended or stalled. Tested in tests/test_hostile_documents.py.
"""
