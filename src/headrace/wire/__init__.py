"""Bytes to frames and back. Nothing here awaits, opens a socket or reads a clock."""
