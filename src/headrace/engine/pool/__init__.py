"""Several engines behind one name."""
