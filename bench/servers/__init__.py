"""One module per measured server; each runs as a process of its own."""
