"""What a summary's numbers amount to: verdicts, conclusions and advice."""
