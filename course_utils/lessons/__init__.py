"""What several notebooks share and a reader may read: `from course_utils.lessons import data`.

`data` and `models` are trained on; `memory` counts bytes; `tensor_parallel` and `pipeline` are
by-hand versions of torch's; `sharding` measures a step of 08 and 09; `sequences` checks attention
over ranks against one device; `strategies`, `strategy_map` and `published_runs` are for notebook
14, `faulty_jobs` for 20, `solo` and `many` for 22; `contents` is the course as a table. All but
`contents` import torch.
"""

from .contents import course_map

__all__ = ["course_map"]
