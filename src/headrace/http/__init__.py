"""HTTP and WebSocket. It appends requests and follows the log; it knows no agent, engine or tool."""
