"""What every room stands on: errors in words, spans of time, one palette, what a number is. No torch.

Start with `errors.py` and `timeline.py`; `drawing.py` is how data finds its picture without importing it.
"""
