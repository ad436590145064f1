"""What several notebooks share and a reader may read: `from course_utils.lessons import data, models`. Imports torch.

`data` and `models` are trained on; `memory` counts bytes; `tensor_parallel` and `pipeline` are by-hand versions of
torch's; `shards` draws what lies on which rank; `sequences` holds attention over ranks against one device;
`strategies` and `choosing` are for notebook 14, `cases` for 20; `map` is the course as a table.
"""

from .map import course_map

__all__ = ["course_map"]
