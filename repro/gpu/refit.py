"""Did the engine take the new weights? Its rows of log-probs after every update, held against the trainer's own.

The measure is that of ``repro.samplers.refit``: the share of the weights' movement since an earlier update that the
engine's rows followed, 1 for an engine with the new weights however coarse its format, 0 for one that kept the old
ones. While the weights have moved too little for the noise, the older ones stay the point of comparison.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from repro.gpu.hf_policy import HFPolicy
from repro.policies import State
from repro.samplers.refit import RESOLUTION, RefitError, distance, share_of_movement


class RefitProbe:
    """Called as ``probe(sampler, state)`` after every update of a sampler that has ``next_logp``.

    ``sequences`` [N >= 2, L] are left-padded. ``distances`` keeps, for every update, the mean over rows of
    sum_v p_v |log engine_v - log p_v| in nats, p the trainer's row.
    """

    def __init__(self, policy: HFPolicy, sequences: Tensor):
        if sequences.ndim != 2 or len(sequences) < 2:
            raise ValueError(f"sequences: expected [N >= 2, L], got {tuple(sequences.shape)}")
        self.policy, self.sequences = policy, sequences
        self.distances: list[float] = []
        self._earlier: Tensor | None = None

    def __call__(self, sampler: Any, state: State) -> None:
        """Raise RefitError when the engine's rows are not finite or stayed with the earlier weights."""
        new = self.policy.next_logp(state, self.sequences).cpu()
        engine = sampler.next_logp(self.sequences).cpu()
        if not engine.isfinite().all():
            row = int((~engine.isfinite()).any(-1).nonzero()[0])
            raise RefitError(f"refit: the engine's log-probs are not finite on probe {row} after update {self.updates}")
        self.distances.append(distance(engine, new))
        if self._earlier is None:
            self._earlier = new
            return
        share, error = share_of_movement(engine, self._earlier, new)
        if not error <= RESOLUTION:  # NaN included: nothing moved
            return
        if share < 0.5:
            raise RefitError(
                f"refit: the engine still answers with earlier weights at update {self.updates}: it followed "
                f"{share:.3g} +- {error:.2g} of the weights' movement and lies {self.distances[-1]:.3g} nats from the "
                "trainer; the update did not reach it"
            )
        self._earlier = new

    @property
    def updates(self) -> int:
        """Number of updates compared so far."""
        return len(self.distances)
