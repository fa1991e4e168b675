"""What model servers say of themselves: how they are set up, as remarks for an operator, and how much they hold, for
the engine. One module for each kind of server."""
