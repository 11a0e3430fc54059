"""One line at the bottom of a terminal that is drawn again and again."""

from __future__ import annotations

from collections.abc import Callable


class LiveLine:
    """The last line of a terminal, drawn again and again."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._text: Callable[..., Text] = Text
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._shown = False

    def show(self, text: str) -> None:
        """Draw."""
        if not self._shown:
            self._live.start()
            self._shown = True
        self._live.update(self._text(text, style="cyan", overflow="ellipsis", no_wrap=True), refresh=True)

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._shown:
            self._live.stop()
            self._shown = False
