"""Several machines as one: the far side answers questions about its runs and its hardware, the near side asks.

places    what a user may type for a machine, checked
messages  one question or answer as bytes: JSON, and arrays as they are in memory
codec     what a reader returns, into a message and back
far       answers, from the folders of this machine
channels  how a question gets there: ssh, HTTP, or this process
machines  one machine: its state, its list of runs, its hardware, always from memory
readers   a run of another machine, as `contracts.Reader`
runs      the runs of all machines, as `contracts.Runs`
"""
