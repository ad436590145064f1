"""The site: the committed notebooks, the API and a glossary. `make site` builds it, offline."""

import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
import site_pages  # noqa: E402 - of this folder

project = "From one device to many"
author = copyright = "the authors of the course"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["README.md", "docs/*.md", "notebooks/*.ipynb", "benchmarks/README.md"]
exclude_patterns = ["**/.*"]

html_theme = "furo"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sphinx = False

# The outputs are the committed ones. Controls need a kernel; nothing is loaded from elsewhere.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
nb_output_stderr = "show"
nb_merge_streams = True

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["mystnb.unknown_mime_type"]

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_google_docstring = True


def mathml(self, node: nodes.Element) -> None:
    """Formulas as MathML, which browsers draw themselves: no script and no fonts to fetch."""
    inline = isinstance(node, nodes.math)
    self.body.append(tex2mathml(node.astext(), as_block=not inline))
    raise nodes.SkipNode


def setup(app) -> None:
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("source-read", site_pages.read)


html_math_renderer = "mathml"
