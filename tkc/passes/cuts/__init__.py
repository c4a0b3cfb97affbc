"""Cutting a program along one axis of a tile, so that what does not fit is computed in parts
(fit-results, fit-dots, fit-rows).
"""
