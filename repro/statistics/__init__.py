"""What a set of finished runs says: intervals and tests of few runs, the verdict on a row's claim, survival, streaks."""
