"""Readers of foreign profiles: one file a format, each with `read(path) -> ModelProfile`; files with '_' help several."""
