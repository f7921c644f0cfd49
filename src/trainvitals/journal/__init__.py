"""The run folder: write, rotate, seal, follow, read. The only code that knows the format.

`layout` names, `encoding` lines, `writer` appends, `folder` is run.json and the folder itself, `cursor` follows a
file, `segments` seals to Parquet with `extremes` beside it, `sealed` reads both through `parquet`, `reader` is what
every view uses, `retention` cleans up, `checkup` finds and mends damage.
"""
