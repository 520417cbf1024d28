"""Exact populations: expectations without sampling noise.

tree        every sequence of a small vocabulary: mean, bias and covariance of any objective's gradient estimator
meanfield   a learning iteration with shared features: why decided tokens under a mismatched sampler lower the accuracy
tail_bias   the drift that each tail model leaves, against the head width and the tail's shape

What does *not* lower the accuracy, measured with `tree.ascend` (no sampling noise; the tests hold smaller versions):

* A free tabular softmax, V = 4, H = 5, logits rounded to whole numbers at every synchronisation, 400 steps at rate 1: .207 ->
  .995 (plain gradient), .992 (TIS), .993 (centered). Decided branches share no parameters with the others.
* Shared features where the policy controls the deciding token, V = 4, H = 4, frozen error 0.3, three seeds, 600 steps at rate
  0.3: .25 -> .999 for all arms. As success tends to 1 the failure contexts vanish and their drift with them.
* Luck in place of the deciding token, same tree, 300 steps at rate 1: the accuracy cannot move; the entropy of the decided
  tokens falls from 1.39 to 0.55-0.62 nats (plain gradient), to 1.11-1.17 (TIS) and not at all (centered).
"""
