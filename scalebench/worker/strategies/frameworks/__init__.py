"""Other people's frameworks, each in one file, by their public interface alone."""
