"""The embedded engine: llama.cpp's server in a process of its own."""
