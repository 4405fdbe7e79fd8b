"""Commands that measure: `profile`, `calibrate`, `import`, `links`, `measure-overlap` and `measure-waves`."""
