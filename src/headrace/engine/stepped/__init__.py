"""What the engines have in common whose library answers many requests a step at a time, in a process of its own."""
