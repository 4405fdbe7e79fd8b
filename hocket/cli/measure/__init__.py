"""Commands that measure: `profile`, `overlap`, `waves`."""
