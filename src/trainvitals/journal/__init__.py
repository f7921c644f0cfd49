"""The run folder: write, rotate, seal, follow, read. The only code that knows the format.

`layout` names, `encoding` lines, `writer` appends, `folder` is run.json and the folder itself, `cursor` follows a
file, `segments` seals and queries Parquet, `reader` is what every view uses, `retention` cleans up.
"""
