"""How records are written and read: files, folders, secrets, and messages between processes."""
