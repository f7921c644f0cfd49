"""What the command line, the terminal, the page and the report share: a run's numbers, ready to be shown.

Everything here is made from the run folder and knows nothing of where it is drawn. The four that draw are strangers to
each other (`pyproject.toml`): what two of them need lives here.
"""
