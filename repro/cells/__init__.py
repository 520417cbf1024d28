"""Cells, the single runs of a row: what plans them, computes them in workers that may be killed, keeps and collects them.

`plan` says which, `executors` and `worker` compute, `progress` shows how far; `store` keeps a cell as a table of `metrics`,
`publication` collects the finished ones into a figure folder and `restore` takes them back out of it.
"""
