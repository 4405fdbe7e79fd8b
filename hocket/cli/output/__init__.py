"""Terminal output: tables, footnotes, progress bars, shared options."""
