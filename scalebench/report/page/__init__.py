"""The report page: its figures, sections and templates."""
