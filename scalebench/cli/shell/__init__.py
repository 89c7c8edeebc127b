"""The shell that commands are typed into: completion, help, and the command that was meant."""
