"""JSON schemas and regular expressions as grammars."""
