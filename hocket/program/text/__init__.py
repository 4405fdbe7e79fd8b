"""A program as text: printer, parser, staircase diagram."""
