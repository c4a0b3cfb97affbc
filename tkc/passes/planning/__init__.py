"""What `plan` weighs: which engines a data flow allows, how its factors reach them, and what a
choice costs.
"""
