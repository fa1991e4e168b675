"""What an engine says, made whole: characters, stop strings, thoughts, tool calls."""
