"""The course in a real browser: `make browser`. Left out, in words, where there is no Chromium or
no Playwright.
"""
