"""Price analysis in chapter 6 of Narayanan's dissertation."""
