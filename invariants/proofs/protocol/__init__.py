"""The block pool and its manager as a transition system, proved by induction for any number of blocks and requests.

The steps are the manager's own methods, run on symbolic columns (`columns`); what holds between two steps is a list of
clauses (`clauses`) about a view of the state (`state`); a count is defined from the tables, and how it changes is proved
apart (`counts`). `pool_steps` and `manager_steps` say from which states which method is run, `induction` that each step
keeps every clause.
"""
