"""The recipes of the page "Your own code" run as they stand."""

import re
from importlib.util import find_spec

import pytest

from tests.files import ROOT, write
from tests.kernel import posix

pytestmark = posix
PAGE = (ROOT / "docs" / "own_code.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = {block[2 : block.index("\n")]: block for block in BLOCKS if block.startswith("# ")}
RECIPES = [block for block in BLOCKS if block not in FILES.values()]
PRINTED = {
    "def demo(": r"\[\d+\.\d+, \d+\.\d+\]",
    "def meet(": r"(\[2.0, 2.0\]\s*){4}",
    "def script(": r"rank [01]: 3 steps(.*\n)*\[\d+\.\d+, \d+\.\d+\]",
    "import Accelerator": r"\[2, 2\]",
    "import Fabric": r"\[2, 2\]",
    "import LivePlot": r"0 \[20, 20\]",
}


@pytest.mark.parametrize("recipe", RECIPES, ids=PRINTED)
def test_it_runs_as_it_stands(recipe, kernel, tmp_path):
    if find_spec("torch_xla") and "import Fabric" not in recipe:
        pytest.skip("run without torch_xla")
    if "import Accelerator" in recipe:
        pytest.importorskip("accelerate")
    if "import Fabric" in recipe:
        pytest.importorskip("lightning")
    (printed,) = [PRINTED[words] for words in PRINTED if words in recipe]
    write(tmp_path, FILES)
    answer = kernel.works(f"os.chdir({str(tmp_path)!r})\n{recipe}")
    assert re.search(printed, answer.text), answer.text
