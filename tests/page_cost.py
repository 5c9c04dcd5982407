"""What the page costs: decode tok/s with the page on screen against the same run without, in interleaved pairs.

    python -m tests.page_cost [PAIRS]

One engine, one prompt, `ssd` at the defaults. Alone, nobody looks: the run is only waited for. With the page, a
browser (which shares the machine's cores) sends the prompt in the chat and shows answer, numbers and timeline while
it runs. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import statistics
import sys

from saguaro_core import SaguaroSSD

from .browsing import chromium
from .test_page import ARGUMENTS, Site, Visitor

PROMPT = "Write a Python function that checks whether a number is prime."


class Watched:
    """An engine that remembers its last run."""

    def __init__(self, engine):
        self.engine, self.run = engine, None

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def generate(self, *args, **options):
        self.run = self.engine.generate(*args, **options)
        return self.run


def main(pairs: int) -> None:
    from playwright.sync_api import sync_playwright

    with SaguaroSSD() as engine, sync_playwright() as playwright:
        watched = Watched(engine)
        site = Site(watched)
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            ratios = []
            for number in range(pairs + 1):  # the first warms up
                halves = [_alone, _with_page] if number % 2 else [_with_page, _alone]
                speed = {half: half(watched, browser, site.url) for half in halves}
                if number:
                    ratios.append(speed[_with_page] / speed[_alone])
                    print(f"alone {speed[_alone]:.1f}, with the page {speed[_with_page]:.1f} tok/s: {ratios[-1]:.3f}")
            print(f"median ratio {statistics.median(ratios):.3f} of {pairs} pairs")
        finally:
            browser.close()
            site.close()


def _alone(engine, browser, url: str) -> float:
    engine.generate(PROMPT, method="ssd").wait()
    return engine.run.summary["decode_tok_s"]


def _with_page(engine, browser, url: str) -> float:
    visitor = Visitor(browser, url, query="?compare=0")
    visitor.tab.wait_for_timeout(1000)  # the page has settled
    visitor.ask(PROMPT, 60)
    visitor.close()
    return engine.run.summary["decode_tok_s"]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
