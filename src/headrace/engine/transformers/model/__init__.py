"""A model in transformers, as `Batch` wants it. Only these files know PyTorch, and only the child imports them."""
