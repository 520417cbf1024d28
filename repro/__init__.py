"""The laboratory: small, seeded training runs that show what rollout correction does to a policy.

It runs from a checkout (``python -m repro ...``) and is not part of the installed distribution. It imports
``rlcorr_ref``, which never imports it back.
"""
