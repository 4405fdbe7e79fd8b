"""Readers for published prices and availability: files to Offers and Availability.

aws.py and azure.py read price histories. gcp.py reads observed prices. catalogue.py reads SkyPilot's catalogues. log.py
reads instance logs. spot_trace.py reads availability at fixed time steps. throughputs.py reads throughputs as
published with chapter 6 of Narayanan's dissertation. public.py reads a folder with the layout of the published data.
All readers are strict and bounded; an error names the file, the line and the field.
"""
