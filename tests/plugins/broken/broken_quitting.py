import sys

sys.exit("a program, not a plugin")
