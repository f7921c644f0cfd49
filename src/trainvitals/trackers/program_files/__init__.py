"""Event files and tables that a program below `trainvitals run` writes by itself: their numbers, in its run.

The program only leaves a note of each file that it opens (`notes`); a process beside the agent follows the files
(`following`) and passes over what the run has already (`repeats`).
"""
