"""Readers of what clouds and others publish about prices: files in, Offers and Availabilities out.

aws.py and azure.py read price histories, gcp.py prices that were found, catalogue.py SkyPilot's catalogues, log.py logs of
instances that came and went, spot_trace.py their numbers at equal steps of time, throughputs.py the throughputs that chapter 6
divides by prices, public.py a whole folder laid out as the published data are. All are strict and bounded: one error names the
file, the line and the field.
"""
