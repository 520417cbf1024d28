"""One file per production package. Imports of packages happen in each adapter's `load()`, never on import."""
