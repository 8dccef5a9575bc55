"""The textual app of `fairlane top`: layout and key bindings."""

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.widgets import Footer, Input, Static

from fairlane.cli.top import panels
from fairlane.cli.top.picture import Picture

PANELS = {"lanes": "1 Lanes", "tenants": "2 Tenants", "workers": "3 Workers", "blocks": "4 KV blocks"}

# Calls its argument with each new picture, until cancelled.
Run = Callable[[Callable[[Picture], None]], Coroutine[Any, Any, None]]


class TopApp(App[None]):
    """Draws each new picture, unless paused."""

    TITLE = "fairlane top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #header { height: 1; }
    .panel { border-top: solid $primary; border-title-style: bold; height: auto; scrollbar-size-vertical: 1; }
    #lanes-panel { max-height: 6; }
    #tenants-panel { height: 1fr; min-height: 3; }
    #workers-panel { max-height: 25%; }
    #blocks-panel { max-height: 35%; }
    .panel.zoomed { height: 1fr; max-height: 100%; }
    #filter { display: none; height: 1; border: none; }
    #filter.asked { display: block; }
    """
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort tenants"),
        Binding("c", "colour", "colour", show=False),
        Binding("slash", "filter", "filter"),
        Binding("escape", "clear", "clear", show=False),
        Binding("1", "zoom('lanes')", "zoom", key_display="1-4"),
        Binding("2", "zoom('tenants')", show=False),
        Binding("3", "zoom('workers')", show=False),
        Binding("4", "zoom('blocks')", show=False),
        Binding("0", "zoom('')", "all"),
    ]

    def __init__(self, url: str, run: Run) -> None:
        super().__init__()
        self._url, self._run = url, run
        self._picture, self._newest = Picture(), Picture()
        self._width = 0
        self._is_paused = False
        self._sort = next(iter(panels.TENANT_SORTS))
        self._filtered = ""
        self._zoomed = ""
        self._by_tenant = False

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        for name, title in PANELS.items():
            panel = VerticalScroll(Static(id=name), id=f"{name}-panel", classes="panel")
            panel.border_title = title
            yield panel
        yield Input(placeholder="part of a tenant's name; enter", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.draw()
        self.run_worker(self._run(self.show), exclusive=True)

    def on_resize(self, event: Resize) -> None:
        self._width = event.size.width
        self.draw()

    def show(self, picture: Picture) -> None:
        self._newest = picture
        if not self._is_paused:
            self._picture = picture
            self.draw()

    def draw(self) -> None:
        picture, width = self._picture, self._width or self.size.width
        overview = picture.overview
        blocks = sum(worker.blocks_total for worker in overview.workers)
        shown = {
            "header": panels.header(picture, self._url, paused=self._is_paused, filtered=self._filtered),
            "lanes": panels.lanes_panel(overview.lanes),
            "tenants": panels.tenants_panel(overview.tenants, self._sort, self._filtered, blocks, width),
            "workers": panels.workers_panel(overview.workers, width),
            "blocks": panels.blocks_panel(picture, width, by_tenant=self._by_tenant),
        }
        for name, content in shown.items():
            self.query_one(f"#{name}", Static).update(content)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self.show(self._newest)
        self.draw()

    def action_sort(self) -> None:
        sorts = list(panels.TENANT_SORTS)
        self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        self.draw()

    def action_colour(self) -> None:
        self._by_tenant = not self._by_tenant
        self.draw()

    def action_filter(self) -> None:
        asked = self.query_one("#filter", Input)
        asked.add_class("asked")
        asked.value = self._filtered
        self.call_after_refresh(asked.focus)  # a hidden widget cannot take the focus

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filtered = event.value
        self.draw()

    def on_input_submitted(self, _: Input.Submitted) -> None:
        self._close_filter()

    def action_clear(self) -> None:
        self._filtered = ""
        self._close_filter()
        self.action_zoom("")

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("asked")
        self.set_focus(None)
        self.draw()

    def action_zoom(self, name: str) -> None:
        self._zoomed = "" if name == self._zoomed else name
        for each in PANELS:
            panel = self.query_one(f"#{each}-panel")
            panel.display = self._zoomed in ("", each)
            panel.set_class(self._zoomed == each, "zoomed")
        self.draw()
