"""Commands that measure: `profile`, `measure-overlap`, `measure-waves`, ..."""
