"""The cases, one module per family; see `rlcorr_ref.vectors.registry` for how a case is declared."""
