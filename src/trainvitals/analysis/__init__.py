"""Pure functions: numbers in, findings out. No file is read and nothing is drawn here."""
