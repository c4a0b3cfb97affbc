"""Calling kernels: specialization, caches, launches, devices, tensor maps, export. Nothing here
imports xDSL before something has to be compiled.
"""
