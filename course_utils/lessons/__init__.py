"""What several notebooks share and a reader may read: `from course_utils.lessons import data, models`. Imports torch.

`data` and `models` are trained on; `pipeline`, `tensor_parallel` and `model_parallel` are by-hand versions of torch's;
`sequences` and `experts` hold attention and experts over ranks against those on one device;
`shards` draws what lies on which rank; `map` is the course as a path, for notebook 00; `knobs`
runs a cell's last line again with other values, `panel` is its controls; `board` and `choosing` are for notebook 14.
"""

from .map import course_map

__all__ = ["course_map"]
