"""Other experiment trackers: their file formats and protocols, read into run folders and written from them.

Codecs know bytes and nothing of runs (`tensorboard/framing.py`), readers turn a source into runs (`importing.py` has
the contract), and one writer puts runs into folders (`run_writing.py`).
"""
