"""What a run's cases would do at sizes that were not measured, and through failures."""
