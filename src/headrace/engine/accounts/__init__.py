"""What model servers say of how they are set up, as remarks for an operator: one module for each kind of server."""
