"""The connections to a model server."""
