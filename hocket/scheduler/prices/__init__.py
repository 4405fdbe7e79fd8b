"""Cloud prices and availability of accelerator instances, and training costs.

A Market (market.py) holds an Offer per place and instance type: a Series (series.py) of its spot price and a Series
of its on-demand price. Bills (bill.py) record the cost of leases and are stored with the run. availability.py records
when an instance was available, and gives preemption notices; egress.py gives transfer costs. The folder analysis
recomputes the price analysis in chapter 6 of Narayanan's dissertation (figures.py, reductions.py). Files are read by
hocket/scheduler/prices/readers/. Times are seconds since 1970 (UTC), and always arguments.
"""
