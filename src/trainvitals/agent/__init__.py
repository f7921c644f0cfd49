"""The agent: one process per machine and user that samples the hardware and watches over the runs.

`loop` is its life, `sampling` reads the sources, `watching` looks after one run with the help of `following` (what
the ranks log), `lines` (what the agent writes), `liveness` (is it still stepping), `causes` (why did it die) and
`stacks` (where does it hang). `sealing` makes segments in a separate process. `control` and `service` are for the
command line.
"""
