"""A run as a document: one HTML file, Markdown, JSON, and pictures without a browser."""
