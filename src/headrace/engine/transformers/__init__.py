"""The embedded engine for who has weights and nothing else: Hugging Face's transformers in a process of its own."""
