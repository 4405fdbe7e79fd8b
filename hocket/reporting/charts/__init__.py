"""SVG charts: bars, timelines, staircase, memory."""
