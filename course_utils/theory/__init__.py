"""Plans as data: pipeline schedules, collectives, a split matrix product, what a plan costs. No torch, no processes.

Start with `schedules.py` and `cost.py`; `pictures` draws all of it. Use it as `from course_utils.theory import cost`.
"""
