"""`python -m release.site`: write the pages that `mkdocs build` reads."""

from release.site.pages import ROOT, write

if __name__ == "__main__":
    write(ROOT / "build" / "docs")
