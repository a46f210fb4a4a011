"""What the host is: its topology, state and description, and what the doctor says of it."""
