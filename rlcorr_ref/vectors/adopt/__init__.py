"""Adoption of the vectors by other projects: selection, arrays, verdicts, profiles, report, scaffolds.

`rlcorr_ref.pytest_plugin` is the entrance; everything here is imported only when a test asks for a case.
"""
