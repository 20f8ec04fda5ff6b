"""What keeps the documentation true: it runs the examples, and writes what runs and code
say.
"""
