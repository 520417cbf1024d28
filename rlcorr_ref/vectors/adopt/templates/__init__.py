"""Test files in other projects' conventions, as `rlcorr vectors scaffold` writes them; not imported: they need the project."""
