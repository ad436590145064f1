"""Answers to the exercises, one file a notebook: RIGHT and WRONG by exercise; those in HANGS never
end.
"""
