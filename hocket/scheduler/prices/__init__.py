"""What clouds charge for instances with accelerators, when they have any, and what follows from that for training.

A Market (market.py) holds an Offer for each place and type of instance: a Series (series.py) of its spot price and one of its
price on demand. Bills (bill.py) say what a lease cost and are stored with the run; availability.py says when an instance was to
be had, and warns of its end; egress.py what it costs to move bytes. figures.py and reductions.py recompute the analysis of
chapter 6. Files are read by hocket/scheduler/prices/readers/. Moments are seconds since 1970 (UTC), and always arguments.
"""
