"""Configuration of the documentation site: see "Documentation" in CONTRIBUTING.md."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

import hetero_la

project = "hetero_la"
author = "hetero_la developers"
project_copyright = author
release = version = hetero_la.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    # ours
    "command_line",
    "literal_blocks",
    "played_run",
]
exclude_patterns = ["_build", "extensions", "performance/figures", "studies/figures"]
# Build without a network: what other projects document is linked by address, where at all.
nitpicky = True
nitpick_ignore_regex = [
    # Types in signatures: other projects' classes, and names that only type checkers see.
    (r"py:.*", r"(numpy|scipy|dask|distributed|networkx|collections|typing|pathlib)\..*"),
]
default_role = "code"
highlight_language = "none"  # of blocks that name none: texts and equations
templates_path = ["templates"]

autodoc_typehints = "none"
autosummary_generate = True
# Other modules of the library use these; users have no use for them.
autodoc_default_options = {
    "exclude-members": "include_copies, job, new_worker_spec, packed_job, played, private_client, "
    "require_products"
}
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"

# What the examples need to be small enough for two cores stands in them; nothing is set here.
os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "error")
sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "min_reported_time": 60,
    "write_computation_times": False,  # its pages load scripts from a network
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "plot_gallery": "True",
}
if importlib.util.find_spec("matplotlib") is not None:
    import matplotlib

    matplotlib.use("agg")

html_theme = "pydata_sphinx_theme"
html_title = "hetero_la"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
# Pages without a second level have no use for an empty bar at the left.
html_sidebars = {"performance/index": [], "index": []}
