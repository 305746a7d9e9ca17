"""The book engine: profiles, runner, claims, scorecard, figure style and tables.

Pages import its modules one by one (``from lib.book import claims, figures``). This file imports
nothing, so that a page depends only on the modules that it names.
"""
