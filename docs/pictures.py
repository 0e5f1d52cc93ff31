"""The pictures of README and docs: `python docs/pictures.py [STUDY]` makes them anew, of the quick study unless another
one is named. Needs playwright and chromium."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from flstudy.reporting.style import DPI, PAGE_DPI, small_png
from flstudy.study import StudyFolder
from flstudy.tracking.store import absolute_uri, open_store
from flstudy.tracking.ui import mlflow_server, study_pages

HERE = Path(__file__).parent / "pictures"
WAIT_MS, PAUSE_MS = 120_000, 2000
PORT = 5123


def main() -> int:
    """Run the quick study where none is named, and take the pictures."""
    with tempfile.TemporaryDirectory() as place:
        if len(sys.argv) > 1:
            folder, uri = StudyFolder.named(sys.argv[1]), absolute_uri(None)
        else:
            subprocess.run([sys.executable, "-m", "flstudy", "tune", "quick"], cwd=place, check=True)
            folder, uri = StudyFolder(Path(place) / "studies" / "quick"), f"sqlite:///{place}/mlflow_tracking/mlflow.db"
        HERE.mkdir(exist_ok=True)
        small_png(folder.report / "curves.png", HERE / "curves.png", PAGE_DPI / DPI)
        with sync_playwright() as started:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = started.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"]
            )
            of_report(browser, folder)
            of_mlflow(browser, folder, uri)
            browser.close()
    for picture in sorted(HERE.glob("*.png")):
        small_png(picture, picture)
        print(f"{picture}: {picture.stat().st_size // 1024} KiB")
    return 0


def of_report(browser: Browser, folder: StudyFolder) -> None:
    """The report's first page, and the interactive one with the values under the pointer."""
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto((folder.report / "report.html").resolve().as_uri())
    page.screenshot(path=HERE / "report.png")
    page.goto((folder.report / "interactive.html").resolve().as_uri())
    box = page.locator("#curves svg").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    page.screenshot(path=HERE / "interactive.png")


def of_mlflow(browser: Browser, folder: StudyFolder, uri: str) -> None:
    """MLflow's table of the study's trials, the best first."""
    with mlflow_server(uri, PORT) as (address, _):
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(WAIT_MS)
        page.goto(study_pages(open_store(uri), folder.state()["study_id"], address)["Trials"])
        page.get_by_role("link", name=folder.name, exact=True).wait_for()
        for opened in page.get_by_role("button", name="Close", exact=True).all():  # the assistant, on a first visit
            opened.click()
        page.wait_for_timeout(PAUSE_MS)  # until the table is as wide as the page
        page.screenshot(path=HERE / "mlflow.png")


if __name__ == "__main__":
    sys.exit(main())
